#include "server/http_session.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/status.hpp>
#include <chrono>
#include <ctime>

#include "base/check.h"
#include "server/url.h"

namespace cadre {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr size_t kMaxPipelinedBytes = 64 << 10;  // read ahead while a request is being answered
constexpr size_t kMaxLingerBytes = 64 << 20;
constexpr int64_t kLingerMs = 2000;

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

// The present as an HTTP date (RFC 9110, section 5.6.7).
std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  static constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                            "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  return fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", kDays[utc.tm_wday], utc.tm_mday, kMonths[utc.tm_mon],
                     utc.tm_year + 1900, utc.tm_hour, utc.tm_min, utc.tm_sec);
}

}  // namespace

// The handler's end of a request. Holds the connection alive; one that goes without an answer leaves a 500.
class SessionExchange final : public HttpExchange {
 public:
  SessionExchange(std::shared_ptr<HttpSession> session, uint64_t serial)
      : session_(std::move(session)), serial_(serial) {}

  ~SessionExchange() override {
    if (answered_) return;
    with_session([](HttpSession& s) {
      if (!s.is_streaming_ && !s.answer_complete_)
        s.answer_whole(
            s.shared_->handler.protocol_error(500, "the request was dropped inside the server; report this"));
    });
  }

  void send(HttpResponse response) override {
    answered_ = true;
    with_session([response = std::move(response)](HttpSession& s) {
      if (!s.is_streaming_ && !s.answer_complete_) s.answer_whole(response);
    });
  }

  void begin_stream(HttpResponse head) override {
    answered_ = true;
    with_session([head = std::move(head)](HttpSession& s) {
      if (!s.is_streaming_ && !s.answer_complete_) s.begin_stream(head);
    });
  }

  void write(std::string bytes) override {
    with_session([bytes = std::move(bytes)](HttpSession& s) {
      if (s.is_streaming_ && !s.answer_complete_) s.write_piece(bytes);
    });
  }

  void end_stream(bool keep_connection) override {
    with_session([keep_connection](HttpSession& s) {
      if (s.is_streaming_ && !s.answer_complete_) s.end_stream(keep_connection);
    });
  }

  void set_keep_alive(int64_t interval_ms, std::string bytes) override {
    with_session([interval_ms, bytes = std::move(bytes)](HttpSession& s) {
      s.keep_alive_ms_ = interval_ms;
      s.keep_alive_bytes_ = bytes;
      s.arm_keep_alive();
    });
  }

  void abort() override {
    answered_ = true;
    with_session([](HttpSession& s) { s.drop(); });
  }

  void post(std::function<void()> task) override {
    if (session_->shared_->stopped) return;
    asio::post(session_->socket_.get_executor(), [session = session_, task = std::move(task)] { task(); });
  }

  void run_in_background(std::function<void()> task) override {
    asio::post(session_->shared_->background, [session = session_, task = std::move(task)] { task(); });
  }

  void on_closed(std::function<void()> callback) override {
    if (session_->shared_->stopped) return;
    asio::dispatch(session_->socket_.get_executor(), [session = session_, serial = serial_,
                                                      callback = std::move(callback)] {
      const bool is_current = session->exchange_serial_ == serial && session->phase_ == HttpSession::Phase::kAnswering;
      if (is_current && !session->answer_complete_) {
        session->closed_callback_ = callback;
      } else if (session->phase_ == HttpSession::Phase::kClosed) {
        callback();  // gone before anybody listened
      }
    });
  }

 private:
  // Runs the task on the strand if this exchange is still the one being answered.
  template <typename Task>
  void with_session(Task task) {
    if (session_->shared_->stopped) return;
    asio::dispatch(session_->socket_.get_executor(), [session = session_, serial = serial_, task = std::move(task)] {
      if (session->exchange_serial_ == serial && session->phase_ == HttpSession::Phase::kAnswering) task(*session);
    });
  }

  std::shared_ptr<HttpSession> session_;
  uint64_t serial_;
  std::atomic<bool> answered_{false};
};

void HttpShared::add_active(int delta) {
  const std::lock_guard lock(mutex);
  num_active += delta;
  if (num_active == 0) quiet.notify_all();
}

HttpSession::HttpSession(Socket socket, std::shared_ptr<HttpShared> shared, bool is_served)
    : shared_(std::move(shared)),
      socket_(std::move(socket)),
      is_served_(is_served),
      deadline_(socket_.get_executor()),
      keep_alive_timer_(socket_.get_executor()) {}

HttpSession::~HttpSession() {
  const std::lock_guard lock(shared_->mutex);
  shared_->sessions.erase(this);
}

template <typename Task>
void HttpSession::on_strand(Task task) {
  asio::dispatch(socket_.get_executor(), [self = shared_from_this(), task] { task(*self); });
}

void HttpSession::start() {
  on_strand([](HttpSession& s) {
    error_code ignored;
    s.socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
    s.parse();
  });
}

void HttpSession::refuse_connection() {
  on_strand([](HttpSession& s) {
    s.begin_exchange();
    s.answer_whole(s.shared_->handler.protocol_error(
        503, "expected fewer connections at once, found the limit reached; try again later"));
  });
}

void HttpSession::close_if_idle() {
  on_strand([](HttpSession& s) {
    if (s.phase_ == Phase::kIdle) s.drop();
  });
}

void HttpSession::close() {
  on_strand([](HttpSession& s) { s.drop(); });
}

void HttpSession::consume(size_t num_bytes) {
  input_pos_ += num_bytes;
  if (input_pos_ < input_.size()) return;
  input_.clear();
  input_pos_ = 0;
}

// At most one read is outstanding. While a request is being answered it is what notices that the peer has gone.
void HttpSession::read_more() {
  if (reading_ || phase_ == Phase::kClosed) return;
  if (phase_ == Phase::kAnswering && input_size() >= kMaxPipelinedBytes) return;
  reading_ = true;
  socket_.async_read_some(asio::buffer(chunk_), [self = shared_from_this()](const error_code& error, size_t num_bytes) {
    self->on_read(error, num_bytes);
  });
}

void HttpSession::on_read(const error_code& error, size_t num_bytes) {
  reading_ = false;
  if (phase_ == Phase::kClosed) return;
  if (error) {
    // A peer that closed its side after the last byte of its request may still read an answer that is all there.
    if (error == asio::error::eof && phase_ == Phase::kAnswering && answer_complete_)
      keep_connection_ = false;
    else
      drop();
    return;
  }
  if (phase_ == Phase::kLingering) {
    lingered_bytes_ += num_bytes;
    if (lingered_bytes_ > kMaxLingerBytes)
      drop();
    else
      read_more();
    return;
  }
  if (input_pos_ > 0) {
    input_.erase(0, input_pos_);
    input_pos_ = 0;
  }
  input_.append(chunk_.data(), num_bytes);
  if (phase_ == Phase::kAnswering)
    read_more();
  else
    parse();
}

void HttpSession::parse() {
  for (;;) {
    if (phase_ == Phase::kIdle) {
      // An empty line before a request is to be ignored (RFC 9112, section 2.2).
      while (input_size() > 0 && (input_[input_pos_] == '\r' || input_[input_pos_] == '\n')) consume(1);
      if (input_size() == 0) {
        arm_deadline(shared_->options.idle_timeout_ms);
        read_more();
        return;
      }
      begin_request();
    }
    error_code error;
    consume(parser_->put(asio::const_buffer(input_.data() + input_pos_, input_size()), error));
    if (error && error != http::error::need_more) {
      on_parse_error(error);
      return;
    }
    if (phase_ == Phase::kHead && parser_->is_header_done()) {
      if (!on_head()) return;
      error = {};
    }
    if (parser_->is_done()) {
      on_request();
      return;
    }
    if (error == http::error::need_more || input_size() == 0) {
      read_more();
      return;
    }
  }
}

void HttpSession::begin_request() {
  parser_.emplace();
  parser_->eager(false);
  parser_->header_limit(static_cast<uint32_t>(shared_->options.max_header_bytes));
  parser_->body_limit(shared_->options.max_body_bytes);
  request_ = {};
  keep_connection_ = false;
  is_http10_ = is_head_ = false;
  phase_ = Phase::kHead;
  arm_deadline(shared_->options.header_timeout_ms);
}

bool HttpSession::on_head() {
  const auto& message = parser_->get();
  request_.method = std::string(message.method_string());
  for (const auto& field : message)
    request_.headers.emplace_back(lower(field.name_string()), std::string(field.value()));
  is_http10_ = message.version() < 11;
  is_head_ = request_.method == "HEAD";
  keep_connection_ = parser_->keep_alive();
  const auto length = parser_->content_length();
  request_.has_body = parser_->chunked() || (length && *length > 0);

  if (!split_target(message.target(), &request_.path, &request_.query)) {
    refuse(shared_->handler.protocol_error(
               400, "expected a path in the request line, found something else; ask for /v1/models"),
           false);
    return false;
  }
  if (auto refusal = shared_->handler.check_head(request_)) {
    refuse(std::move(*refusal), !request_.has_body && keep_connection_);
    return false;
  }
  const std::string expect = lower(request_.header("expect"));
  if (!expect.empty() && expect != "100-continue") {
    refuse(shared_->handler.protocol_error(417, "expected no Expect header but 100-continue; leave it out"), false);
    return false;
  }
  phase_ = Phase::kBody;
  parser_->eager(true);
  arm_deadline(shared_->options.body_timeout_ms);
  if (!expect.empty() && !is_http10_ && request_.has_body && input_size() == 0)
    queue_bytes("HTTP/1.1 100 Continue\r\n\r\n");
  return true;
}

void HttpSession::on_request() {
  request_.body = std::move(parser_->get().body());
  parser_.reset();
  begin_exchange();
  shared_->handler.handle(std::move(request_), std::make_shared<SessionExchange>(shared_from_this(), exchange_serial_));
  read_more();
}

void HttpSession::on_parse_error(const error_code& error) {
  const HttpServerOptions& options = shared_->options;
  HttpHandler& handler = shared_->handler;
  if (error == http::error::header_limit) {
    refuse(
        handler.protocol_error(431, fmt::format("expected a request line and headers of at most {} bytes, found more; "
                                                "shorten them",
                                                options.max_header_bytes)),
        false);
  } else if (error == http::error::body_limit) {
    refuse(
        handler.protocol_error(413, fmt::format("expected a body of at most {} bytes, found more; send a shorter one",
                                                options.max_body_bytes)),
        false);
  } else {
    refuse(
        handler.protocol_error(
            400, fmt::format("expected an HTTP/1.1 request, found a fault ({}); correct the request", error.message())),
        false);
  }
}

// Answers a request that was not read to its end.
void HttpSession::refuse(HttpResponse response, bool keep_connection) {
  const bool is_done = parser_ && parser_->is_done();
  parser_.reset();
  begin_exchange();
  keep_connection_ = keep_connection && is_done;
  answer_whole(response);
}

void HttpSession::begin_exchange() {
  phase_ = Phase::kAnswering;
  ++exchange_serial_;
  is_streaming_ = answer_complete_ = false;
  keep_alive_ms_ = 0;
  shared_->add_active(1);
  if (!writing_) arm_deadline(0);
}

std::string HttpSession::head_text(const HttpResponse& response, bool is_stream) const {
  std::string text =
      fmt::format("HTTP/1.1 {} {}\r\nDate: {}\r\nServer: cadre\r\n", response.status,
                  std::string_view(http::obsolete_reason(http::int_to_status(static_cast<unsigned>(response.status)))),
                  http_date());
  if (!response.content_type.empty()) text += fmt::format("Content-Type: {}\r\n", response.content_type);
  for (const auto& [name, value] : response.headers) {
    CADRE_CHECK(value.find_first_of("\r\n") == std::string::npos, "header {} breaks the line", name);
    text += fmt::format("{}: {}\r\n", name, value);
  }
  if (!is_stream) {
    if (response.status != 204) text += fmt::format("Content-Length: {}\r\n", response.body.size());
  } else if (!is_http10_) {
    text += "Transfer-Encoding: chunked\r\n";
  }
  if (!keep_connection_)
    text += "Connection: close\r\n";
  else if (is_http10_)
    text += "Connection: keep-alive\r\n";
  return text + "\r\n";
}

void HttpSession::answer_whole(const HttpResponse& response) {
  if (shared_->closing) keep_connection_ = false;
  answer_complete_ = true;
  std::string text = head_text(response, false);
  if (!is_head_ && response.status != 204) text += response.body;
  queue_bytes(text);
}

void HttpSession::begin_stream(const HttpResponse& head) {
  if (shared_->closing || is_http10_) keep_connection_ = false;
  is_streaming_ = true;
  queue_bytes(head_text(head, true));
}

void HttpSession::write_piece(std::string_view bytes) {
  if (bytes.empty()) return;
  if (queued_.size() + flight_.size() - flight_sent_ + bytes.size() > shared_->options.max_unsent_bytes) {
    drop();
    return;
  }
  if (is_http10_) {
    queue_bytes(bytes);
  } else {
    queue_bytes(fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes));
  }
  arm_keep_alive();
}

void HttpSession::end_stream(bool keep_connection) {
  if (!keep_connection || shared_->closing) keep_connection_ = false;
  answer_complete_ = true;
  keep_alive_timer_.cancel();
  if (!is_http10_) queued_ += "0\r\n\r\n";
  if (!writing_) write_some();
}

void HttpSession::finish_exchange() {
  closed_callback_ = nullptr;
  phase_ = Phase::kIdle;
  shared_->add_active(-1);
  if (!keep_connection_ || shared_->closing) {
    linger();
    return;
  }
  parse();
}

void HttpSession::queue_bytes(std::string_view bytes) {
  queued_ += bytes;
  if (!writing_) write_some();
}

void HttpSession::write_some() {
  if (phase_ == Phase::kClosed) return;
  if (flight_sent_ == flight_.size()) {
    flight_.clear();
    flight_sent_ = 0;
    std::swap(flight_, queued_);
    if (flight_.empty()) {
      if (phase_ != Phase::kAnswering) return;
      arm_deadline(0);
      if (answer_complete_) finish_exchange();
      return;
    }
  }
  writing_ = true;
  if (phase_ == Phase::kAnswering) arm_deadline(shared_->options.write_timeout_ms);
  socket_.async_write_some(asio::buffer(flight_.data() + flight_sent_, flight_.size() - flight_sent_),
                           [self = shared_from_this()](const error_code& error, size_t num_bytes) {
                             self->writing_ = false;
                             if (error) {
                               self->drop();
                               return;
                             }
                             self->flight_sent_ += num_bytes;
                             self->write_some();
                           });
}

void HttpSession::arm_deadline(int64_t timeout_ms) {
  if (timeout_ms <= 0) {
    deadline_.expires_at(std::chrono::steady_clock::time_point::max());
    return;
  }
  deadline_.expires_after(std::chrono::milliseconds(timeout_ms));
  deadline_.async_wait([self = shared_from_this()](const error_code& error) {
    if (!error && self->deadline_.expiry() <= std::chrono::steady_clock::now()) self->on_deadline();
  });
}

void HttpSession::on_deadline() {
  if (phase_ == Phase::kHead || phase_ == Phase::kBody) {
    refuse(
        shared_->handler.protocol_error(408, "expected the whole request in time, found it unfinished; send it faster"),
        false);
  } else {
    drop();
  }
}

void HttpSession::arm_keep_alive() {
  if (keep_alive_ms_ <= 0 || !is_streaming_ || answer_complete_) return;
  keep_alive_timer_.expires_after(std::chrono::milliseconds(keep_alive_ms_));
  keep_alive_timer_.async_wait([self = shared_from_this(), serial = exchange_serial_](const error_code& error) {
    if (error || self->exchange_serial_ != serial || self->phase_ != Phase::kAnswering || self->answer_complete_)
      return;
    // A peer that does not even take what there is needs no sign of life.
    if (self->writing_)
      self->arm_keep_alive();
    else
      self->write_piece(self->keep_alive_bytes_);
  });
}

void HttpSession::linger() {
  phase_ = Phase::kLingering;
  error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  consume(input_size());
  arm_deadline(kLingerMs);
  read_more();
}

void HttpSession::drop() {
  if (phase_ == Phase::kClosed) return;
  const bool was_answering = phase_ == Phase::kAnswering;
  phase_ = Phase::kClosed;
  error_code ignored;
  socket_.close(ignored);
  deadline_.cancel();
  keep_alive_timer_.cancel();
  if (is_served_) {
    const std::lock_guard lock(shared_->mutex);
    --shared_->num_served;
  }
  if (was_answering) {
    if (auto callback = std::exchange(closed_callback_, nullptr)) callback();
    shared_->add_active(-1);
  }
}

}  // namespace cadre
