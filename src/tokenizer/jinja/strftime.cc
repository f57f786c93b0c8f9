// datetime.strftime on a time in UTC without a time zone: %z and %Z are empty, %f is zero.
#include <ctime>

#include "tokenizer/jinja/builtins.h"

namespace cadre::jinja {

std::string format_time(Runtime& rt, std::string_view format, int64_t unix_s) {
  const std::time_t seconds = unix_s;
  std::tm parts{};
  if (!gmtime_r(&seconds, &parts)) fail("expected a time of this calendar, found {} seconds", unix_s);
  std::string out;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 == format.size()) {
      out += format[i];
      continue;
    }
    // A directive: flags, a width of at most two digits, a modifier, a letter.
    size_t end = i + 1;
    while (end < format.size() && std::string_view("-_^#0").find(format[end]) != std::string_view::npos) ++end;
    for (int digits = 0; digits < 2 && end < format.size() && format[end] >= '0' && format[end] <= '9'; ++digits) ++end;
    if (end < format.size() && (format[end] == 'E' || format[end] == 'O')) ++end;
    if (end >= format.size()) {
      out += format.substr(i);
      break;
    }
    const char letter = format[end];
    if (letter == 'f') {
      out += "000000";
    } else if (letter == '%') {
      out += '%';
    } else if (letter != 'z' && letter != 'Z') {
      // The space in front tells an empty result from one that does not fit.
      const std::string directive = " " + std::string(format.substr(i, end + 1 - i));
      char buffer[512];
      const size_t bytes = std::strftime(buffer, sizeof buffer, directive.c_str(), &parts);
      out.append(buffer + 1, bytes > 0 ? bytes - 1 : 0);
    }
    rt.heap.check(out.size());
    i = end;
  }
  return out;
}

}  // namespace cadre::jinja
