// The store's frames. Request: op, key length, value length, key, value. Reply: status, length, bytes. Little-endian.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace cadre::store_wire {

enum Op : uint8_t { kSet = 1, kGet = 2, kAdd = 3 };
enum Status : uint8_t { kOk = 0, kRefused = 1 };

struct RequestHead {
  uint8_t op = 0;
  uint8_t unused[3] = {};
  uint32_t key_bytes = 0;
  uint32_t value_bytes = 0;
};
struct ReplyHead {
  uint8_t status = 0;
  uint8_t unused[3] = {};
  uint32_t bytes = 0;
};
static_assert(sizeof(RequestHead) == 12 && sizeof(ReplyHead) == 8);

template <typename Head>
void append(std::string& out, const Head& head) {
  out.append(reinterpret_cast<const char*>(&head), sizeof head);
}
template <typename Head>
Head read(std::string_view bytes) {
  Head head;
  std::memcpy(&head, bytes.data(), sizeof head);
  return head;
}

}  // namespace cadre::store_wire
