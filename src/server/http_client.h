// A small blocking HTTP/1.1 client over plain TCP, for `cadre ask` and for tests that need to misbehave byte by byte.
// One connection, one request at a time, no TLS.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/http_types.h"

namespace cadre {

struct HttpReply {
  int status = 0;
  HttpHeaders headers;  // names in lower case
  std::string body;     // decoded; empty after read_head()

  std::string_view header(std::string_view name) const {
    for (const auto& [key, value] : headers)
      if (key == name) return value;
    return {};
  }
};

class HttpClient {
 public:
  // Connects. Every call throws Error (kUnavailable) when the peer cannot be reached, closes early or is silent for
  // timeout_ms.
  HttpClient(const std::string& host, uint16_t port, int64_t timeout_ms = 60'000);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;

  // A whole exchange.
  HttpReply request(std::string_view method, std::string_view path, std::string_view body = {},
                    const HttpHeaders& headers = {});

  // The parts of one.
  void send_request(std::string_view method, std::string_view path, std::string_view body, const HttpHeaders& headers);
  void send_raw(std::string_view bytes);
  HttpReply read_head();
  // The next bytes of the body; false at its end. has_body false: after HEAD.
  bool read_piece(std::string* piece);
  HttpReply read_reply(bool has_body = true);

  // True when the peer has closed and nothing is left to read.
  bool is_closed_by_peer();
  void close();
  void reset();  // closes with RST

 private:
  enum class Framing { kNone, kLength, kChunked, kUntilClose };
  bool fill();  // reads once; false at the end of the connection
  std::string read_line();

  std::string host_;
  int fd_ = -1;
  int64_t timeout_ms_;
  std::string input_;
  Framing framing_ = Framing::kNone;
  uint64_t num_left_ = 0;  // bytes of the body or of the chunk
};

// The JSON texts of server-sent events as bytes come in: what follows "data: ", one string per event, comments dropped.
class EventReader {
 public:
  // Appends the data of the events completed by these bytes.
  void push(std::string_view bytes, std::vector<std::string>* events);

 private:
  std::string held_;
};

}  // namespace cadre
