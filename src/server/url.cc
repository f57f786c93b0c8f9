#include "server/url.h"

namespace cadre {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool decode_percent(std::string_view text, std::string* out) {
  out->clear();
  for (size_t i = 0; i < text.size(); ++i) {
    if (static_cast<unsigned char>(text[i]) < 0x20) return false;  // NUL among them, which would end the path early
    if (text[i] != '%') {
      *out += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return false;
    const int high = hex_digit(text[i + 1]), low = hex_digit(text[i + 2]);
    if (high < 0 || low < 0 || (high == 0 && low == 0)) return false;
    *out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return true;
}

}  // namespace

bool split_target(std::string_view target, std::string* path, std::string* query) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!target.starts_with(scheme)) continue;
    const size_t slash = target.find('/', scheme.size());
    target = slash == std::string_view::npos ? std::string_view("/") : target.substr(slash);
  }
  if (target == "*") target = "/*";  // OPTIONS * asks about the server as a whole
  if (!target.starts_with("/")) return false;
  if (const size_t fragment = target.find('#'); fragment != std::string_view::npos) target = target.substr(0, fragment);
  const size_t question = target.find('?');
  *query = question == std::string_view::npos ? std::string() : std::string(target.substr(question + 1));
  return decode_percent(target.substr(0, question), path);
}

}  // namespace cadre
