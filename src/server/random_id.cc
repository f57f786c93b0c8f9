#include "server/random_id.h"

#include <fmt/format.h>

#include <random>

namespace cadre {

std::string random_id() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}{:08x}", device(), device(), device());
}

}  // namespace cadre
