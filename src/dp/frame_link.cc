#include "dp/frame_link.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/error.h"
#include "dp/wire.h"

namespace cadre {
namespace {

Error broken(const std::string& how) { return Error(ErrorKind::kUnavailable, fmt::format("the connection between ranks {}; see the other rank's log", how)); }

// False at the deadline.
bool wait_ready(int fd, short events, int64_t timeout_us) {
  pollfd p{fd, events, 0};
  for (;;) {
    const int n = ::poll(&p, 1, timeout_us < 0 ? -1 : static_cast<int>(std::min<int64_t>((timeout_us + 999) / 1000, 1 << 30)));
    if (n >= 0) return n > 0;
    if (errno != EINTR) throw broken(std::strerror(errno));
  }
}

void write_all(int fd, const char* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = ::send(fd, data, bytes, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw broken(fmt::format("broke ({})", std::strerror(errno)));
    data += n;
    bytes -= static_cast<size_t>(n);
  }
}

// False when the peer has closed before the first byte.
bool read_all(int fd, char* data, size_t bytes, int64_t timeout_us) {
  for (size_t at = 0; at < bytes;) {
    if (timeout_us >= 0 && !wait_ready(fd, POLLIN, timeout_us)) throw broken("was silent past its deadline");
    const ssize_t n = ::recv(fd, data + at, bytes - at, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw broken(fmt::format("broke ({})", std::strerror(errno)));
    if (n == 0 && at == 0) return false;
    if (n == 0) throw broken("ended within a message");
    at += static_cast<size_t>(n);
  }
  return true;
}

bool read_into(int fd, Frame* frame, int64_t timeout_us) {
  uint32_t head[2];
  if (!read_all(fd, reinterpret_cast<char*>(head), sizeof(head), timeout_us)) return false;
  if (head[0] > kMaxFrameBytes || head[1] > 255) throw broken(fmt::format("brought {} bytes as one message", head[0]));
  frame->type = static_cast<uint8_t>(head[1]);
  frame->bytes.resize(head[0]);
  if (head[0] > 0 && !read_all(fd, frame->bytes.data(), head[0], timeout_us)) throw broken("ended within a message");
  return true;
}

struct Resolved {
  addrinfo* list = nullptr;
  Resolved(const std::string& host, int port, int flags) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags;
    const int code = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
    if (code != 0) throw Error(ErrorKind::kUnavailable, fmt::format("expected a host that resolves, found {} ({}); check the name", cadre::quoted(host), ::gai_strerror(code)));
  }
  ~Resolved() { ::freeaddrinfo(list); }
};

}  // namespace

void write_frame(int fd, const Frame& frame) {
  const uint32_t head[2] = {static_cast<uint32_t>(frame.bytes.size()), frame.type};
  write_all(fd, reinterpret_cast<const char*>(head), sizeof(head));
  write_all(fd, frame.bytes.data(), frame.bytes.size());
}

Frame read_frame(int fd, int64_t timeout_us) {
  Frame frame;
  if (!read_into(fd, &frame, timeout_us)) throw broken("ended");
  return frame;
}

FrameListener::FrameListener(const std::string& host) {
  const Resolved at(host, 0, AI_PASSIVE);
  fd_ = ::socket(at.list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd_ < 0 || ::bind(fd_, at.list->ai_addr, at.list->ai_addrlen) != 0 || ::listen(fd_, 128) != 0) {
    const std::string how = std::strerror(errno);
    if (fd_ >= 0) ::close(fd_);
    throw Error(ErrorKind::kUnavailable, fmt::format("expected to listen on {}, found: {}; give another address", host, how));
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  ::getsockname(fd_, reinterpret_cast<sockaddr*>(&bound), &size);
  port_ = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port : reinterpret_cast<sockaddr_in&>(bound).sin_port);
}

FrameListener::~FrameListener() { ::close(fd_); }

int FrameListener::accept(int64_t timeout_us) {
  if (!wait_ready(fd_, POLLIN, timeout_us)) throw Error(ErrorKind::kUnavailable, "expected every rank to connect in time, found one missing; see the ranks' logs");
  const int fd = ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) throw broken(fmt::format("could not be accepted ({})", std::strerror(errno)));
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return fd;
}

int connect_frames(const std::string& host, int port, int64_t timeout_us) {
  const Resolved to(host, port, 0);
  const int fd = ::socket(to.list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) throw broken(fmt::format("could not be made ({})", std::strerror(errno)));
  int error = ::connect(fd, to.list->ai_addr, to.list->ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    socklen_t size = sizeof(error);
    if (!wait_ready(fd, POLLOUT, timeout_us)) error = ETIMEDOUT;
    else ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  }
  if (error != 0) {
    ::close(fd);
    throw Error(ErrorKind::kUnavailable, fmt::format("expected rank 0 to answer at {}:{}, found: {}; start it first or check the address", host, port, std::strerror(error)));
  }
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK);
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return fd;
}

FrameLink::FrameLink(int fd, std::function<void(Frame&&)> received, std::function<void(const std::string&)> lost)
    : fd_(fd), received_(std::move(received)), lost_(std::move(lost)) {}

FrameLink::~FrameLink() {
  flush_and_close();
  if (reader_.joinable()) reader_.join();
  if (writer_.joinable()) writer_.join();
  ::close(fd_);
}

void FrameLink::start() {
  reader_ = std::thread([this] { read_loop(); });
  writer_ = std::thread([this] { write_loop(); });
}

void FrameLink::send(Frame frame) {
  const std::lock_guard lock(mutex_);
  if (is_broken_ || is_closing_) return;
  queue_.push_back(std::move(frame));
  changed_.notify_all();
}

void FrameLink::flush_and_close() {
  std::unique_lock lock(mutex_);
  is_closing_ = true;
  changed_.notify_all();
  // A peer that takes nothing any more does not hold this side up for ever.
  if (writer_.joinable()) changed_.wait_for(lock, std::chrono::seconds(5), [&] { return is_broken_ || queue_.empty(); });
  ::shutdown(fd_, SHUT_RDWR);
}

void FrameLink::read_loop() {
  std::string how = "ended";
  try {
    for (Frame frame; read_into(fd_, &frame, -1);) received_(std::move(frame));
  } catch (const std::exception& e) {
    how = e.what();
  }
  {
    const std::lock_guard lock(mutex_);
    is_broken_ = true;
    changed_.notify_all();
  }
  lost_(how);
}

void FrameLink::write_loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !queue_.empty() || is_closing_ || is_broken_; });
    if (is_broken_ || queue_.empty()) break;
    Frame frame = std::move(queue_.front());
    lock.unlock();
    try {
      write_frame(fd_, frame);
    } catch (const std::exception&) {
      ::shutdown(fd_, SHUT_RDWR);  // the reader tells
      return;
    }
    lock.lock();
    queue_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace cadre
