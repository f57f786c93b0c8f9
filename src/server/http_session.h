// One connection of HttpServer: reads requests, hands them to the handler one at a time, writes the answers. Everything
// but the constructor and the calls marked "any thread" runs on the connection's strand. Internal to http_server.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "server/http_server.h"

namespace cadre {

class HttpSession;

// What the connections of a server share. Sessions own it together with the server, so that an answer still held
// somewhere never touches a dead io_context.
struct HttpShared {
  HttpShared(HttpServerOptions o, HttpHandler& h)
      : options(std::move(o)), handler(h), io(options.num_io_threads), background(options.num_background_threads) {}

  void add_active(int delta);

  const HttpServerOptions options;
  HttpHandler& handler;
  boost::asio::io_context io;
  boost::asio::thread_pool background;
  std::atomic<bool> closing{false};  // answers close their connections
  std::atomic<bool> stopped{false};  // nothing runs any more
  std::mutex mutex;
  std::condition_variable quiet;
  int64_t num_served = 0;  // guarded by mutex: connections within the limit
  int64_t num_active = 0;  // guarded by mutex
  std::unordered_map<HttpSession*, std::weak_ptr<HttpSession>> sessions;  // guarded by mutex
};

class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  using Socket = boost::asio::basic_stream_socket<boost::asio::ip::tcp,
                                                  boost::asio::strand<boost::asio::io_context::executor_type>>;

  // is_served: counted in num_served until it closes.
  HttpSession(Socket socket, std::shared_ptr<HttpShared> shared, bool is_served);
  ~HttpSession();
  HttpSession(const HttpSession&) = delete;

  void start();              // any thread
  void refuse_connection();  // any thread, instead of start: too many connections
  void close_if_idle();      // any thread
  void close();              // any thread

 private:
  friend class SessionExchange;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  enum class Phase {
    kIdle,       // between requests
    kHead,       // reading request line and headers
    kBody,       // reading a body
    kAnswering,  // a request is with the handler, or its answer on the way out
    kLingering,  // answered, send side shut: takes what the peer still sends, so that it can read the answer
    kClosed,
  };

  template <typename Task>
  void on_strand(Task task);
  size_t input_size() const { return input_.size() - input_pos_; }
  void consume(size_t num_bytes);
  void read_more();
  void on_read(const boost::system::error_code& error, size_t num_bytes);
  void parse();
  void begin_request();
  bool on_head();  // false: the request was refused
  void on_request();
  void on_parse_error(const boost::system::error_code& error);
  void refuse(HttpResponse response, bool keep_connection);

  void begin_exchange();
  void answer_whole(const HttpResponse& response);
  void begin_stream(const HttpResponse& head);
  void write_piece(std::string_view bytes);
  void end_stream(bool keep_connection);
  void finish_exchange();
  std::string head_text(const HttpResponse& response, bool is_stream) const;

  void queue_bytes(std::string_view bytes);
  void write_some();
  void arm_deadline(int64_t timeout_ms);  // 0: none
  void on_deadline();
  void arm_keep_alive();
  void linger();
  void drop();  // closes at once and tells the exchange

  // First, so that it goes last: socket and timers reach into its io_context even when they go.
  std::shared_ptr<HttpShared> shared_;
  Socket socket_;
  const bool is_served_;
  std::array<char, 16 << 10> chunk_;  // what the outstanding read fills
  std::string input_;                 // read and not parsed yet, from input_pos_
  size_t input_pos_ = 0;
  std::optional<Parser> parser_;
  Phase phase_ = Phase::kIdle;
  bool reading_ = false;
  size_t lingered_bytes_ = 0;
  boost::asio::steady_timer deadline_;

  // The request being answered. Calls of an exchange whose serial is not this one come too late and do nothing.
  HttpRequest request_;
  uint64_t exchange_serial_ = 0;
  bool keep_connection_ = false;
  bool is_http10_ = false, is_head_ = false;
  bool is_streaming_ = false, answer_complete_ = false;
  std::function<void()> closed_callback_;

  std::string queued_, flight_;  // bytes waiting, bytes given to the system
  size_t flight_sent_ = 0;
  bool writing_ = false;

  boost::asio::steady_timer keep_alive_timer_;
  int64_t keep_alive_ms_ = 0;
  std::string keep_alive_bytes_;
};

}  // namespace cadre
