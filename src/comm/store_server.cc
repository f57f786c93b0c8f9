#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <map>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/store.h"
#include "comm/store_wire.h"

namespace cadre {

using namespace store_wire;

namespace {

int listen_on(const StoreAddress& address) {
  addrinfo hints{.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  const std::string port = std::to_string(address.port);
  if (const int error =
          getaddrinfo(address.host.empty() ? nullptr : address.host.c_str(), port.c_str(), &hints, &found))
    throw invalid_input("store: expected a host to listen on, found {}: {}", quoted(address.host), gai_strerror(error));
  int last_error = 0;
  for (addrinfo* a = found; a; a = a->ai_next) {
    const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    const int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, 256) == 0) {
      freeaddrinfo(found);
      return fd;
    }
    last_error = errno;
    ::close(fd);
  }
  freeaddrinfo(found);
  throw invalid_input("store: expected to listen on {}, found: {}; choose another port, or 0 for a free one",
                      to_string(address), std::strerror(last_error));
}

struct Client {
  int fd;
  std::string in, out;
  std::string waits_for;  // key of a get that has no value yet
};

}  // namespace

class StoreServer::Impl {
 public:
  Impl(const StoreAddress& address, StoreLimits limits)
      : limits_(limits), listener_(listen_on(address)), stop_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    sockaddr_storage bound{};
    socklen_t bytes = sizeof bound;
    getsockname(listener_, reinterpret_cast<sockaddr*>(&bound), &bytes);
    port_ = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                              : reinterpret_cast<sockaddr_in&>(bound).sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~Impl() {
    eventfd_write(stop_, 1);
    thread_.join();
    for (Client& c : clients_) ::close(c.fd);
    ::close(listener_);
    ::close(stop_);
  }
  int port() const { return port_; }

 private:
  void serve() {
    std::vector<pollfd> fds;
    for (;;) {
      // With all places taken newcomers wait in the listener's queue.
      fds.assign(
          {{stop_, POLLIN, 0}, {listener_, static_cast<short>(clients_.size() < limits_.max_clients ? POLLIN : 0), 0}});
      for (const Client& c : clients_)
        fds.push_back({c.fd, static_cast<short>(c.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
      if (poll(fds.data(), fds.size(), -1) < 0) continue;
      if (fds[0].revents) return;
      const size_t num_polled = clients_.size();
      std::vector<bool> is_done(num_polled);
      for (size_t i = 0; i < num_polled; ++i)
        if (fds[i + 2].revents && !serve_client(clients_[i])) is_done[i] = true;
      for (size_t i = num_polled; i-- > 0;)
        if (is_done[i]) {
          ::close(clients_[i].fd);
          clients_.erase(clients_.begin() + static_cast<std::ptrdiff_t>(i));
        }
      if (fds[1].revents)
        if (const int fd = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); fd >= 0)
          clients_.push_back({fd, {}, {}, {}});
    }
  }

  // False when the client is to be closed.
  bool serve_client(Client& client) {
    char bytes[16384];
    const ssize_t n = recv(client.fd, bytes, sizeof bytes, 0);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
    if (n > 0) client.in.append(bytes, static_cast<size_t>(n));
    while (client.in.size() >= sizeof(RequestHead)) {
      const auto head = read<RequestHead>(client.in);
      if (head.key_bytes == 0 || head.key_bytes > limits_.max_key_bytes || head.value_bytes > limits_.max_value_bytes)
        return false;
      const size_t total = sizeof head + head.key_bytes + head.value_bytes;
      if (client.in.size() < total) break;
      if (!client.waits_for.empty()) return false;  // our clients wait for one answer at a time
      const std::string key = client.in.substr(sizeof head, head.key_bytes),
                        value = client.in.substr(sizeof head + head.key_bytes, head.value_bytes);
      client.in.erase(0, total);
      if (!answer(client, head.op, key, value)) return false;
    }
    return flush(client);
  }

  bool answer(Client& client, uint8_t op, const std::string& key, const std::string& value) {
    if (op == kSet) {
      if (put(key, value))
        reply(client, kOk, "");
      else
        reply(client, kRefused, "the store is full");
    } else if (op == kGet) {
      if (const auto it = values_.find(key); it != values_.end())
        reply(client, kOk, it->second);
      else
        client.waits_for = key;
    } else if (op == kAdd) {
      int64_t delta = 0, sum = 0;
      if (value.size() != sizeof delta) return false;
      std::memcpy(&delta, value.data(), sizeof delta);
      const auto it = values_.find(key);
      const std::string old = it == values_.end() ? "" : it->second;
      const auto [end, error] = std::from_chars(old.data(), old.data() + old.size(), sum);
      if (!old.empty() && (error != std::errc() || end != old.data() + old.size()))
        return reply(client, kRefused, "the value is no number"), true;
      if (__builtin_add_overflow(sum, delta, &sum)) return reply(client, kRefused, "the sum does not fit"), true;
      if (put(key, std::to_string(sum)))
        reply(client, kOk, values_[key]);
      else
        reply(client, kRefused, "the store is full");
    } else {
      return false;
    }
    return true;
  }

  bool put(const std::string& key, const std::string& value) {
    const auto it = values_.find(key);
    const size_t before = it == values_.end() ? 0 : key.size() + it->second.size(), after = key.size() + value.size();
    if (num_bytes_ - before + after > limits_.max_total_bytes) return false;
    num_bytes_ = num_bytes_ - before + after;
    values_[key] = value;
    for (Client& c : clients_) {
      if (c.waits_for != key) continue;
      c.waits_for.clear();
      reply(c, kOk, value);
      flush(c);
    }
    return true;
  }

  static void reply(Client& client, Status status, std::string_view bytes) {
    append(client.out, ReplyHead{.status = status, .bytes = static_cast<uint32_t>(bytes.size())});
    client.out.append(bytes);
  }

  static bool flush(Client& client) {
    const ssize_t n = client.out.empty() ? 0 : send(client.fd, client.out.data(), client.out.size(), MSG_NOSIGNAL);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    client.out.erase(0, static_cast<size_t>(n));
    return true;
  }

  const StoreLimits limits_;
  const int listener_, stop_;
  int port_ = 0;
  std::vector<Client> clients_;
  std::map<std::string, std::string> values_;
  size_t num_bytes_ = 0;
  std::thread thread_;
};

StoreServer::StoreServer(const StoreAddress& address, StoreLimits limits)
    : impl_(std::make_unique<Impl>(address, limits)) {}
StoreServer::~StoreServer() = default;
int StoreServer::port() const { return impl_->port(); }

}  // namespace cadre
