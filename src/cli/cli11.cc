// CLI11's own virtual tables, compiled once: App.hpp alone only declares them.
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

namespace cadre::cli {

// Anchors the tables in this file.
CLI::Formatter make_formatter() { return {}; }
CLI::ConfigINI make_config() { return {}; }

}  // namespace cadre::cli
