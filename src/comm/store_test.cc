#include "comm/store.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/store_wire.h"

namespace cadre {
namespace {

constexpr int64_t kLong = 20'000'000;

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(StoreTest, SetGetAdd) {
  StoreServer server({"127.0.0.1", 0});
  StoreClient client({"127.0.0.1", server.port()});
  client.set("a", std::string("x\0y", 3), kLong);
  EXPECT_EQ(client.get("a", kLong), std::string("x\0y", 3));
  client.set("a", "", kLong);
  EXPECT_EQ(client.get("a", kLong), "");
  EXPECT_EQ(client.add("n", 3, kLong), 3);
  EXPECT_EQ(client.add("n", -5, kLong), -2);
  EXPECT_NE(message_of([&] { client.set("t", "text", kLong), client.add("t", 1, kLong); }).find("no number"),
            std::string::npos);
  EXPECT_EQ(client.get("n", kLong), "-2");  // the connection outlives a refusal
}

TEST(StoreTest, GetWaitsUntilSomebodySets) {
  StoreServer server({"127.0.0.1", 0});
  constexpr int kClients = 5;
  std::vector<std::thread> threads;
  std::vector<std::string> got(kClients);
  for (int i = 0; i < kClients; ++i)
    threads.emplace_back([&, i] {
      StoreClient client({"127.0.0.1", server.port()});
      // Each waits for the one before it; the first for the main thread.
      got[static_cast<size_t>(i)] = client.get("turn" + std::to_string(i), kLong);
      client.set("turn" + std::to_string(i + 1), got[static_cast<size_t>(i)] + "+", kLong);
    });
  StoreClient client({"127.0.0.1", server.port()});
  client.set("turn0", "go", kLong);
  EXPECT_EQ(client.get("turn5", kLong), "go+++++");
  for (auto& t : threads) t.join();
}

TEST(StoreTest, AMissingKeyEndsAtTheDeadlineAndNamesIt) {
  StoreServer server({"127.0.0.1", 0});
  StoreClient client({"127.0.0.1", server.port()});
  EXPECT_NE(message_of([&] { client.get("ucx/address/3", 50'000); }).find("ucx/address/3"), std::string::npos);
  // The late answer to that call is not taken for the next one's.
  client.set("ucx/address/3", "late", kLong);
  client.set("other", "right", kLong);
  EXPECT_EQ(client.get("other", kLong), "right");
}

TEST(StoreTest, AStoreThatStartsLaterIsFound) {
  int port = 0;
  { port = StoreServer({"127.0.0.1", 0}).port(); }
  EXPECT_NE(message_of([&] {
              StoreClient({"127.0.0.1", port}).get("a", 60'000);
            }).find("expected rank 0 to serve"),
            std::string::npos);
  std::string got;
  std::thread early([&] { got = StoreClient({"127.0.0.1", port}).get("a", kLong); });
  StoreServer server({"127.0.0.1", port});
  StoreClient({"127.0.0.1", port}).set("a", "1", kLong);
  early.join();
  EXPECT_EQ(got, "1");
}

TEST(StoreTest, AServerThatEndsEndsItsClients) {
  auto server = std::make_unique<StoreServer>(StoreAddress{"127.0.0.1", 0});
  const int port = server->port();
  StoreClient client({"127.0.0.1", port});
  client.set("a", "1", kLong);
  server.reset();
  EXPECT_NE(message_of([&] { client.get("b", 200'000); }), "no error");
}

TEST(StoreTest, SizesAreBounded) {
  StoreServer server({"127.0.0.1", 0}, {.max_key_bytes = 10, .max_value_bytes = 100, .max_total_bytes = 250});
  StoreClient client({"127.0.0.1", server.port()});
  EXPECT_NE(message_of([&] { client.set(std::string(11, 'k'), "v", kLong); }), "no error");
  EXPECT_NE(message_of([&] { client.set("k", std::string(101, 'v'), kLong); }), "no error");
  client.set("k1", std::string(100, 'v'), kLong);
  client.set("k2", std::string(100, 'v'), kLong);
  EXPECT_NE(message_of([&] { client.set("k3", std::string(100, 'v'), kLong); }).find("full"), std::string::npos);
  client.set("k2", "", kLong);  // makes room
  client.set("k3", std::string(100, 'v'), kLong);
}

TEST(StoreTest, GarbageHarmsOnlyItsSender) {
  StoreServer server({"127.0.0.1", 0});
  for (const std::string& garbage :
       {std::string(12, '\xff'), std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100, '\0')}) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to{.sin_family = AF_INET,
                   .sin_port = htons(static_cast<uint16_t>(server.port())),
                   .sin_addr = {htonl(INADDR_LOOPBACK)},
                   .sin_zero = {}};
    ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    ASSERT_EQ(send(fd, garbage.data(), garbage.size(), MSG_NOSIGNAL), static_cast<ssize_t>(garbage.size()));
    char byte;
    EXPECT_LE(recv(fd, &byte, 1, 0), 0) << "the server keeps a client that does not speak its language";
    close(fd);
  }
  StoreClient client({"127.0.0.1", server.port()});
  EXPECT_EQ(client.add("n", 1, kLong), 1);
}

TEST(StoreTest, Addresses) {
  EXPECT_EQ(parse_store_address("host:80").host, "host");
  EXPECT_EQ(parse_store_address("[::1]:80").host, "::1");
  EXPECT_EQ(to_string(parse_store_address("[::1]:80")), "[::1]:80");
  for (const char* bad : {"", "host", ":80", "host:", "host:x", "host:70000", "host:-1", "::1:80", "[]:80", "host:80 "})
    EXPECT_THROW(parse_store_address(bad), Error) << bad;
}

}  // namespace
}  // namespace cadre
