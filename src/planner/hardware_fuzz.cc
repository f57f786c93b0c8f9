#include "base/error.h"
#include "planner/hardware.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cadre::planner;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  HardwareTable table;
  try {
    parse_hardware(text.substr(0, 100));
  } catch (const cadre::Error&) {
  }
  try {
    table.add(text, "file");
    for (const HardwareSpec& h : table.all())
      if (!(h.memory_bytes > h.reserve_bytes) || !(h.memory_bytes_per_s > 0) || h.domain_size < 1) __builtin_trap();
  } catch (const cadre::Error&) {
  }
  return 0;
}
