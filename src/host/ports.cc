#include "host/ports.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace cadre {

std::optional<std::string> why_not_free(const std::string& host, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) return fmt::format("{} is no address", host);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return std::string(std::strerror(errno));
  const int yes = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);  // as servers do: closed connections do not count
  const bool is_free =
      ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 && ::listen(fd, 1) == 0;
  const int error = errno;
  ::close(fd);
  if (is_free) return std::nullopt;
  return std::string(std::strerror(error));
}

PortMeasured probe_port(const std::string& host, int port, bool is_asked_for) {
  constexpr int kLookAhead = 64;
  PortMeasured out{.port = port, .is_free = true, .is_asked_for = is_asked_for};
  const auto why = why_not_free(host, port);
  if (!why) return out;
  out.is_free = false;
  out.why_not = *why;
  for (int next = port + 1; next <= std::min(port + kLookAhead, 65535) && out.next_free == 0; ++next)
    if (!why_not_free(host, next)) out.next_free = next;
  return out;
}

}  // namespace cadre
