#include "server/http_client.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/error.h"

namespace cadre {
namespace {

[[noreturn]] void fail(const std::string& message) { throw Error(ErrorKind::kUnavailable, message); }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) text.remove_suffix(1);
  return text;
}

uint64_t parse_number(std::string_view text, int base) {
  uint64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (result.ec != std::errc() || result.ptr == text.data())
    fail(fmt::format("expected a length in the answer, found {}; ask a Cadre server", quoted(text)));
  return value;
}

}  // namespace

HttpClient::HttpClient(const std::string& host, uint16_t port, int64_t timeout_ms)
    : host_(host), timeout_ms_(timeout_ms) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found))
    fail(fmt::format("expected an address for {}, found: {}; check the host", host, ::gai_strerror(error)));
  std::string reason = "no address";
  for (const addrinfo* at = found; at && fd_ < 0; at = at->ai_next) {
    fd_ = ::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
    if (fd_ < 0) continue;
    if (::connect(fd_, at->ai_addr, at->ai_addrlen) != 0) {
      reason = std::strerror(errno);
      close();
    }
  }
  ::freeaddrinfo(found);
  if (fd_ < 0)
    fail(fmt::format("expected a server on {}:{}, found: {}; start one with 'cadre serve'", host, port, reason));
  const int one = 1;
  ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

HttpClient::~HttpClient() { close(); }

void HttpClient::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void HttpClient::reset() {
  const linger hard{1, 0};
  if (fd_ >= 0) ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  close();
}

void HttpClient::send_raw(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(fmt::format("expected to send to {}, found: {}; try again", host_, std::strerror(errno)));
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

void HttpClient::send_request(std::string_view method, std::string_view path, std::string_view body,
                              const HttpHeaders& headers) {
  std::string text = fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\n", method, path, host_);
  for (const auto& [name, value] : headers) text += fmt::format("{}: {}\r\n", name, value);
  if (!body.empty()) text += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
  send_raw(text + "\r\n" + std::string(body));
}

bool HttpClient::fill() {
  pollfd poll{fd_, POLLIN, 0};
  const int ready = ::poll(&poll, 1, static_cast<int>(timeout_ms_));
  if (ready == 0)
    fail(fmt::format("expected an answer of {} within {} ms, found silence; try again", host_, timeout_ms_));
  char bytes[16 << 10];
  const ssize_t n = ::recv(fd_, bytes, sizeof bytes, 0);
  if (n < 0 && errno == EINTR) return true;
  if (n < 0) fail(fmt::format("expected an answer of {}, found: {}; try again", host_, std::strerror(errno)));
  input_.append(bytes, static_cast<size_t>(n));
  return n > 0;
}

std::string HttpClient::read_line() {
  for (;;) {
    const size_t end = input_.find('\n');
    if (end != std::string::npos) {
      std::string line(trimmed(std::string_view(input_).substr(0, end)));
      input_.erase(0, end + 1);
      return line;
    }
    if (!fill()) fail(fmt::format("expected a whole answer of {}, found the connection closed; try again", host_));
  }
}

HttpReply HttpClient::read_head() {
  HttpReply reply;
  const std::string status = read_line();
  if (!status.starts_with("HTTP/1.") || status.size() < 12)
    fail(fmt::format("expected an HTTP answer of {}, found {}; check the port", host_, quoted(status)));
  reply.status = static_cast<int>(parse_number(std::string_view(status).substr(9, 3), 10));
  framing_ = Framing::kUntilClose;
  for (std::string line = read_line(); !line.empty(); line = read_line()) {
    const size_t colon = std::min(line.find(':'), line.size());
    std::string name = line.substr(0, colon);
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    const std::string value(trimmed(std::string_view(line).substr(std::min(colon + 1, line.size()))));
    if (name == "content-length") {
      framing_ = Framing::kLength;
      num_left_ = parse_number(value, 10);
    } else if (name == "transfer-encoding") {
      framing_ = Framing::kChunked;
      num_left_ = 0;
    }
    reply.headers.emplace_back(std::move(name), value);
  }
  if (reply.status == 204 || reply.status < 200) framing_ = Framing::kNone;
  return reply;
}

bool HttpClient::read_piece(std::string* piece) {
  piece->clear();
  if (framing_ == Framing::kNone) return false;
  if (framing_ == Framing::kChunked && num_left_ == 0) {
    num_left_ = parse_number(read_line(), 16);
    if (num_left_ == 0) {
      while (!read_line().empty()) {
      }
      framing_ = Framing::kNone;
      return false;
    }
  }
  if (framing_ == Framing::kLength && num_left_ == 0) {
    framing_ = Framing::kNone;
    return false;
  }
  if (input_.empty() && !fill()) {
    if (framing_ != Framing::kUntilClose)
      fail(fmt::format("expected a whole answer of {}, found the connection closed; try again", host_));
    framing_ = Framing::kNone;
    return false;
  }
  const size_t n = framing_ == Framing::kUntilClose ? input_.size()
                                                    : static_cast<size_t>(std::min<uint64_t>(num_left_, input_.size()));
  piece->assign(input_, 0, n);
  input_.erase(0, n);
  num_left_ -= framing_ == Framing::kUntilClose ? 0 : n;
  if (framing_ == Framing::kChunked && num_left_ == 0) read_line();
  return true;
}

HttpReply HttpClient::read_reply(bool has_body) {
  HttpReply reply = read_head();
  if (!has_body) framing_ = Framing::kNone;
  for (std::string piece; read_piece(&piece);) reply.body += piece;
  return reply;
}

HttpReply HttpClient::request(std::string_view method, std::string_view path, std::string_view body,
                              const HttpHeaders& headers) {
  send_request(method, path, body, headers);
  return read_reply(method != "HEAD");
}

bool HttpClient::is_closed_by_peer() {
  try {
    return input_.empty() && !fill();
  } catch (const Error&) {
    return true;
  }
}

void EventReader::push(std::string_view bytes, std::vector<std::string>* events) {
  held_ += bytes;
  for (size_t end = held_.find("\n\n"); end != std::string::npos; end = held_.find("\n\n")) {
    const std::string_view event = std::string_view(held_).substr(0, end);
    constexpr std::string_view kData = "data: ";
    if (event.starts_with(kData)) events->emplace_back(event.substr(kData.size()));
    held_.erase(0, end + 2);
  }
}

}  // namespace cadre
