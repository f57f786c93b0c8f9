#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "base/clock.h"
#include "base/error.h"
#include "comm/store.h"
#include "comm/store_wire.h"

namespace cadre {

using namespace store_wire;

namespace {

int64_t now_us() { return SteadyClock().now_us(); }

int left_ms(int64_t deadline_us) {
  return static_cast<int>(std::clamp<int64_t>((deadline_us - now_us() + 999) / 1000, 0, 1 << 30));
}

// False when the deadline passed.
bool wait_for(int fd, short events, int64_t deadline_us) {
  pollfd p{fd, events, 0};
  for (;;) {
    const int n = poll(&p, 1, left_ms(deadline_us));
    if (n > 0) return true;
    if (n == 0 && now_us() >= deadline_us) return false;
  }
}

// A connected socket that does not block, or -1 with errno set.
int try_connect(const addrinfo& a, int64_t deadline_us) {
  const int fd = socket(a.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  int error = 0;
  if (::connect(fd, a.ai_addr, a.ai_addrlen) != 0) {
    error = errno;
    socklen_t bytes = sizeof error;
    if (error == EINPROGRESS) {
      if (wait_for(fd, POLLOUT, deadline_us))
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
      else
        error = ETIMEDOUT;
    }
  }
  if (error == 0) {
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
  }
  ::close(fd);
  errno = error;
  return -1;
}

}  // namespace

StoreAddress parse_store_address(std::string_view text) {
  const size_t colon = text.rfind(':');
  int port = -1;
  if (colon != std::string_view::npos) {
    const std::string_view digits = text.substr(colon + 1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
    if (error != std::errc() || end != digits.data() + digits.size()) port = -1;
  }
  std::string_view host = text.substr(0, std::min(colon, text.size()));
  const bool has_brackets = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (has_brackets) host = host.substr(1, host.size() - 2);
  if (port < 0 || port > 65535 || host.empty() || (!has_brackets && host.find(':') != std::string_view::npos))
    throw invalid_input("store address: expected host:port or [address]:port, found {}", quoted(text));
  return {std::string(host), port};
}

std::string to_string(const StoreAddress& address) {
  return address.host.find(':') == std::string::npos ? fmt::format("{}:{}", address.host, address.port)
                                                     : fmt::format("[{}]:{}", address.host, address.port);
}

StoreClient::StoreClient(StoreAddress address) : address_(std::move(address)) {}
StoreClient::~StoreClient() { close(); }

void StoreClient::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

// Ranks start in any order, so a store that is not there yet is asked again until the deadline.
void StoreClient::connect(int64_t deadline_us) {
  std::string why;
  for (;;) {
    addrinfo hints{.ai_flags = AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    addrinfo* found = nullptr;
    if (const int error = getaddrinfo(address_.host.c_str(), std::to_string(address_.port).c_str(), &hints, &found)) {
      why = gai_strerror(error);
    } else {
      for (addrinfo* a = found; a && fd_ < 0; a = a->ai_next)
        if ((fd_ = try_connect(*a, deadline_us)) < 0) why = std::strerror(errno);
      freeaddrinfo(found);
      if (fd_ >= 0) return;
    }
    const int wait_ms = std::min(20, left_ms(deadline_us));
    if (wait_ms == 0)
      throw Error(
          ErrorKind::kUnavailable,
          fmt::format("store: expected rank 0 to serve {} in time, found: {}; check its address and that it runs",
                      to_string(address_), why));
    poll(nullptr, 0, wait_ms);
  }
}

std::string StoreClient::call(uint8_t op, std::string_view key, std::string_view value, int64_t timeout_us) {
  const int64_t deadline_us = now_us() + timeout_us;
  const auto fail = [&](const std::string& found) {
    close();  // an answer that comes later must not be taken for the next one
    return Error(ErrorKind::kUnavailable,
                 fmt::format("store at {}, key {}: {}", to_string(address_), quoted(key), found));
  };
  if (fd_ < 0) connect(deadline_us);
  std::string out;
  append(out, RequestHead{.op = op,
                          .key_bytes = static_cast<uint32_t>(key.size()),
                          .value_bytes = static_cast<uint32_t>(value.size())});
  out.append(key).append(value);
  for (size_t sent = 0; sent < out.size();) {
    const ssize_t n = send(fd_, out.data() + sent, out.size() - sent, MSG_NOSIGNAL);
    if (n > 0)
      sent += static_cast<size_t>(n);
    else if (errno != EAGAIN && errno != EINTR)
      throw fail(fmt::format("expected to send a request, found: {}", std::strerror(errno)));
    else if (!wait_for(fd_, POLLOUT, deadline_us))
      throw fail(fmt::format("expected the store to take a request within {} us, found it busy", timeout_us));
  }
  std::string in;
  for (size_t want = sizeof(ReplyHead);;) {
    if (in.size() >= sizeof(ReplyHead)) want = sizeof(ReplyHead) + read<ReplyHead>(in).bytes;
    if (in.size() >= want && in.size() >= sizeof(ReplyHead)) break;
    char bytes[16384];
    const ssize_t n = recv(fd_, bytes, sizeof bytes, 0);
    if (n > 0)
      in.append(bytes, static_cast<size_t>(n));
    else if (n == 0)
      throw fail(
          "expected an answer, found the connection closed; the key or value may be too large, or the store has ended");
    else if (errno != EAGAIN && errno != EINTR)
      throw fail(fmt::format("expected an answer, found: {}", std::strerror(errno)));
    else if (!wait_for(fd_, POLLIN, deadline_us))
      throw fail(fmt::format("expected an answer within {} us, found none; a rank that should have set it may not run",
                             timeout_us));
  }
  const std::string bytes = in.substr(sizeof(ReplyHead));
  if (read<ReplyHead>(in).status != kOk)
    throw invalid_input("store at {}, key {}: expected success, found: {}", to_string(address_), quoted(key), bytes);
  return bytes;
}

void StoreClient::set(std::string_view key, std::string_view value, int64_t timeout_us) {
  call(kSet, key, value, timeout_us);
}

std::string StoreClient::get(std::string_view key, int64_t timeout_us) { return call(kGet, key, {}, timeout_us); }

int64_t StoreClient::add(std::string_view key, int64_t delta, int64_t timeout_us) {
  const std::string sum = call(kAdd, key, {reinterpret_cast<const char*>(&delta), sizeof delta}, timeout_us);
  int64_t value = 0;
  std::from_chars(sum.data(), sum.data() + sum.size(), value);
  return value;
}

}  // namespace cadre
