# Half of the build's time would go into a few headers of libraries: they are compiled once per preset, and every folder
# and test program reuses the result (cadre_library). Sources still include what they use.
set(common <boost/json.hpp> <fmt/format.h> <algorithm> <functional> <memory> <optional> <span> <string> <string_view> <vector>)
file(WRITE ${CMAKE_BINARY_DIR}/precompiled.cc "")
add_library(cadre_precompiled OBJECT ${CMAKE_BINARY_DIR}/precompiled.cc)
target_link_libraries(cadre_precompiled PRIVATE Boost::json fmt::fmt)
target_precompile_headers(cadre_precompiled PRIVATE ${common})
if(NOT CADRE_FUZZ)
  add_library(cadre_precompiled_tests OBJECT ${CMAKE_BINARY_DIR}/precompiled.cc)
  target_link_libraries(cadre_precompiled_tests PRIVATE Boost::json fmt::fmt GTest::gtest)
  target_precompile_headers(cadre_precompiled_tests PRIVATE <gtest/gtest.h> ${common})
endif()
