#include <fmt/format.h>

#include <algorithm>

#include "planner/report.h"

namespace cadre::planner {
namespace {

// Ten hues that differ in lightness too.
constexpr const char* kColours[kNumStepParts] = {"#1f77b4", "#17a2b8", "#8c8c8c", "#c7c7c7", "#9467bd",
                                                 "#d62728", "#bcbd22", "#ff9f40", "#2ca02c", "#e0e0e0"};
constexpr int kBarHeight = 20, kLabelWidth = 560, kPlotWidth = 400, kValueWidth = 200;

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

struct Segment {
  double value;
  const char* colour;
  std::string title;
};
struct Bar {
  std::string label, value;
  std::vector<Segment> segments;
};

// Horizontal bars to one scale.
std::string bars_svg(const std::vector<Bar>& bars, std::string_view about) {
  double longest = 0;
  for (const Bar& b : bars) {
    double sum = 0;
    for (const Segment& s : b.segments) sum += s.value;
    longest = std::max(longest, sum);
  }
  const int height = static_cast<int>(bars.size()) * (kBarHeight + 8) + 8;
  std::string out =
      fmt::format("<svg role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {} {}\" width=\"100%\" font-family=\"sans-serif\" font-size=\"12\">\n",
                  escaped(about), kLabelWidth + kPlotWidth + kValueWidth, height);
  int y = 8;
  for (const Bar& b : bars) {
    out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", kLabelWidth - 8, y + 15, escaped(b.label));
    double x = kLabelWidth;
    for (const Segment& s : b.segments) {
      const double width = longest > 0 ? s.value / longest * kPlotWidth : 0;
      if (width > 0)
        out += fmt::format("<rect x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\"><title>{}</title></rect>\n", x, y, width,
                           kBarHeight, s.colour, escaped(s.title));
      x += width;
    }
    out += fmt::format("<text x=\"{:.2f}\" y=\"{}\">{}</text>\n", x + 6, y + 15, escaped(b.value));
    y += kBarHeight + 8;
  }
  return out + "</svg>\n";
}

std::string capacity_plot(const std::vector<const Candidate*>& candidates) {
  std::vector<Bar> bars;
  for (const Candidate* c : candidates) {
    const double tokens = static_cast<double>(c->memory.cluster_tokens) * c->replicas;
    bars.push_back({layout_text(*c),
                    c->fits() ? thousands(static_cast<int64_t>(tokens)) : fmt::format("{}", fmt::join(c->missing, "; ")),
                    {{tokens, "#1f77b4", "distinct tokens in the KV pools of all devices"}}});
  }
  return bars_svg(bars, "Tokens held by layout");
}

std::string time_plot(const std::vector<const Candidate*>& candidates, StepTime Candidate::*which) {
  std::vector<Bar> bars;
  for (const Candidate* c : candidates) {
    Bar bar{layout_text(*c), duration((c->*which).total_us()), {}};
    for (size_t i = 0; i < kNumStepParts; ++i) {
      const StepPart part = static_cast<StepPart>(i);
      const double us = (c->*which)[part].us();
      bar.segments.push_back(
          {us, kColours[i],
           fmt::format("{}: {}, bound by {}", step_part_name(part), duration(us), bound_name((c->*which).bound_of(part)))});
    }
    bars.push_back(std::move(bar));
  }
  return bars_svg(bars, "Time of a step by part and layout");
}

std::string wire_plot(const std::vector<const Candidate*>& candidates) {
  std::vector<Bar> bars;
  for (const Candidate* c : candidates)
    bars.push_back({layout_text(*c),
                    bytes_si(c->decode.domain_bytes + c->decode.network_bytes),
                    {{c->decode.domain_bytes, kColours[7], "inside a domain: " + bytes_si(c->decode.domain_bytes)},
                     {c->decode.network_bytes, kColours[8], "between domains: " + bytes_si(c->decode.network_bytes)}}});
  return bars_svg(bars, "Bytes that a rank sends in a decode step by layout");
}

// One colour for each row of memory_rows().
constexpr std::pair<std::string_view, const char*> kMemoryColours[] = {{"embedding", "#c7c7c7"},
                                                                       {"attention", "#1f77b4"},
                                                                       {"dense layers", "#8c8c8c"},
                                                                       {"routed experts", "#d62728"},
                                                                       {"redundant experts", "#ff9896"},
                                                                       {"shared experts", "#9467bd"},
                                                                       {"router", "#17becf"},
                                                                       {"norms", "#555555"},
                                                                       {"head", "#bcbd22"},
                                                                       {"exchange buffers", "#ff9f40"},
                                                                       {"workspace", "#2ca02c"},
                                                                       {"kept back", "#e0e0e0"},
                                                                       {"KV pool", "#98df8a"}};

std::string memory_plot(const std::vector<const Candidate*>& candidates) {
  std::vector<Bar> bars;
  for (const Candidate* c : candidates) {
    Bar bar{layout_text(*c), bytes_si(static_cast<double>(c->memory.fixed() + c->memory.kv_pool)), {}};
    for (const auto& [what, bytes] : memory_rows(c->memory))
      for (const auto& [name, colour] : kMemoryColours)
        if (what == name)
          bar.segments.push_back({static_cast<double>(bytes), colour, fmt::format("{}: {}", what, bytes_si(static_cast<double>(bytes)))});
    bars.push_back(std::move(bar));
  }
  std::string out = "<p>";
  for (const auto& [name, colour] : kMemoryColours)
    out += fmt::format("<span style=\"background:{}\">&emsp;</span> {} &ensp;", colour, name);
  return out + "</p>\n" + bars_svg(bars, "Memory of a rank by layout");
}

std::string legend() {
  std::string out = "<p>";
  for (size_t i = 0; i < kNumStepParts; ++i)
    out += fmt::format("<span style=\"background:{}\">&emsp;</span> {} &ensp;", kColours[i],
                       escaped(step_part_name(static_cast<StepPart>(i))));
  return out + "</p>\n";
}

}  // namespace

std::string plan_html(const Plan& p) {
  std::vector<const Candidate*> shown = distinct(p.search.ranked, 10);
  const std::vector<const Candidate*> fit = shown;
  for (const Candidate* c : distinct(p.search.infeasible, 3)) shown.push_back(c);
  std::string out =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>cadre plan</title>\n<style>body{font:15px/1.45 "
      "sans-serif;max-width:1200px;margin:2em auto;padding:0 1em}"
      "pre{background:#f5f5f5;padding:.8em;overflow-x:auto}h2{margin-top:1.6em}</style></head><body>\n";
  out += fmt::format("<h1>{} on {} x {}</h1>\n", escaped(p.model), p.request.devices, escaped(p.request.hardware.name));
  out += "<h2>Tokens held by layout</h2>\n" + capacity_plot(shown);
  out += "<h2>Memory of a rank</h2>\n" + memory_plot(shown);
  if (!fit.empty()) {
    out += "<h2>Time of a decode step by part</h2>\n" + legend() + time_plot(fit, &Candidate::decode);
    out += "<h2>Time of a step of prompts by part</h2>\n" + time_plot(fit, &Candidate::prefill);
    out += "<h2>Bytes that a rank sends in a decode step</h2>\n" + wire_plot(fit);
  }
  out += fmt::format("<h2>In words</h2>\n<pre>{}</pre>\n", escaped(plan_text(p)));
  out += "<h2>Where the device's figures are from</h2>\n<ul>\n";
  for (const auto& [figure, source] : p.request.hardware.sources) out += fmt::format("<li>{}: {}</li>\n", escaped(figure), escaped(source));
  return out +
         "<li>latencies, shares of a peak and memory kept back: assumptions, to be replaced by measurements "
         "(--hardware-file)</li>\n</ul>\n</body></html>\n";
}

}  // namespace cadre::planner
