// The version of this build.
#pragma once

namespace cadre::cli {

inline constexpr const char* kVersion = CADRE_VERSION;

}  // namespace cadre::cli
