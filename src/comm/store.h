// A small key/value store over TCP where ranks find each other at start: one rank serves it, all use it as clients.
// Sizes are bounded and client calls have deadlines. It is for start-up only: groups that form later do without it, so
// that the rank that serves it may fail like any other.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace cadre {

struct StoreLimits {
  size_t max_key_bytes = 1024;
  size_t max_value_bytes = 1 << 20;
  size_t max_total_bytes = 64 << 20;  // keys and values
  size_t max_clients = 4096;
};

struct StoreAddress {
  std::string host;  // name or address; IPv6 without brackets
  int port = 0;
};
// "host:port", "[v6 address]:port". Throws Error.
StoreAddress parse_store_address(std::string_view text);
std::string to_string(const StoreAddress& address);

// Serves from a thread of its own until destroyed; what clients wait for then ends with an Error.
class StoreServer {
 public:
  // Binds at once; port 0 takes a free one. Throws Error when it cannot.
  explicit StoreServer(const StoreAddress& address, StoreLimits limits = {});
  ~StoreServer();
  int port() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// One connection, made at the first call and again after a failure. One thread at a time. Every call throws Error when
// it is not done within its time or the store refuses it.
class StoreClient {
 public:
  explicit StoreClient(StoreAddress address);
  ~StoreClient();
  StoreClient(const StoreClient&) = delete;

  void set(std::string_view key, std::string_view value, int64_t timeout_us);
  // The key's value, waiting for somebody to set it.
  std::string get(std::string_view key, int64_t timeout_us);
  // Adds to the number under the key (0 when there is none) and returns the sum.
  int64_t add(std::string_view key, int64_t delta, int64_t timeout_us);

 private:
  std::string call(uint8_t op, std::string_view key, std::string_view value, int64_t timeout_us);
  void connect(int64_t deadline_us);
  void close();

  StoreAddress address_;
  int fd_ = -1;
};

}  // namespace cadre
