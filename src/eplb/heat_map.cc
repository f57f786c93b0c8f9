#include "eplb/heat_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include "eplb/balance.h"
#include "parallel/expert_load.h"

namespace cadre::eplb {
namespace {

using Colour = std::array<int, 3>;
// Load / mean of 0, 1 and 2 or more: blue, nearly white, red.
constexpr Colour kIdle{33, 102, 172}, kEven{247, 247, 247}, kFull{178, 24, 43};

std::string colour(double load_over_mean) {
  const double t = std::clamp(load_over_mean, 0.0, 2.0);
  const Colour& from = t < 1 ? kIdle : kEven;
  const Colour& to = t < 1 ? kEven : kFull;
  const double part = t < 1 ? t : t - 1;
  std::array<int, 3> c{};
  for (size_t i = 0; i < 3; ++i) c[i] = static_cast<int>(std::lround(from[i] + part * (to[i] - from[i])));
  return fmt::format("#{:02x}{:02x}{:02x}", c[0], c[1], c[2]);
}

struct Cells {
  double x = 0, y = 0, width = 0, height = 0;  // of one
};

void draw(const ModelPlacement& placement, std::span<const double> rows, const std::string& title, const Cells& cells,
          std::string* svg) {
  const size_t experts = static_cast<size_t>(placement.placements[0].num_experts());
  double sum = 0;
  std::string rects;
  for (size_t l = 0; l < placement.layers.size(); ++l) {
    const std::vector<double> loads = rank_loads(placement.placements[l], rows.subspan(l * experts, experts));
    const double mean = std::accumulate(loads.begin(), loads.end(), 0.0) / static_cast<double>(loads.size());
    sum += balancedness(loads);
    for (size_t r = 0; r < loads.size(); ++r) {
      const double part = mean == 0 ? 1 : loads[r] / mean;
      rects += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"><title>layer {}, rank {}: "
          "{:.2f} x mean</title></rect>\n",
          cells.x + static_cast<double>(r) * cells.width, cells.y + static_cast<double>(l) * cells.height, cells.width,
          cells.height, colour(part), placement.layers[l], r, part);
    }
  }
  *svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-weight=\"bold\">{}: balancedness {:.3f}</text>\n", cells.x,
                      cells.y - 22, title, sum / static_cast<double>(placement.layers.size()));
  *svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"#555\">ranks 0 to {}</text>\n", cells.x, cells.y - 7,
                      placement.placements[0].ep() - 1);
  *svg += rects;
}

}  // namespace

std::string heat_map_svg(const ModelPlacement& before, const ModelPlacement& after, std::span<const double> rows) {
  const double ranks = before.placements[0].ep(), layers = static_cast<double>(before.layers.size());
  const double width = std::clamp(420 / ranks, 3.0, 28.0), height = std::clamp(560 / layers, 6.0, 28.0);
  const double left = 64, top = 64, gap = 56, panel = std::max(ranks * width, 230.0), bottom = top + layers * height;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n",
      left + 2 * panel + gap + 24, bottom + 64);
  svg += "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n";
  svg += fmt::format("<text x=\"12\" y=\"{:.1f}\" fill=\"#555\">layer</text>\n", top - 7);
  const size_t every = static_cast<size_t>(std::ceil(14 / height));
  for (size_t l = 0; l < before.layers.size(); l += every)
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\" fill=\"#555\">{}</text>\n", left - 8,
                       top + (static_cast<double>(l) + 0.5) * height + 4, before.layers[l]);
  draw(before, rows, "before", {.x = left, .y = top, .width = width, .height = height}, &svg);
  draw(after, rows, "after", {.x = left + panel + gap, .y = top, .width = width, .height = height}, &svg);
  for (int i = 0; i <= 20; ++i)
    svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"8.5\" height=\"12\" fill=\"{}\"/>\n", left + 8 * i,
                       bottom + 20, colour(i / 10.0));
  svg += fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"#555\">load of the rank / mean: 0 (blue), 1, 2 and more (red)</text>\n",
      left + 180, bottom + 31);
  return svg + "</svg>\n";
}

}  // namespace cadre::eplb
