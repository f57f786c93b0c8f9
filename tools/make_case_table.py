#!/usr/bin/env python3
"""Writes src/tokenizer/jinja/case_table.cc: the characters whose upper or title case is not the one character that
utf8proc gives (Unicode's SpecialCasing.txt, the entries without a condition), as this Python's own tables have them."""
import pathlib


def escaped(text):
    return "".join(f"\\x{b:02X}" for b in text.encode())


rows = []
for code in range(0x110000):
    if 0xD800 <= code < 0xE000:
        continue
    c = chr(code)
    if len(c.upper()) > 1 or len(c.title()) > 1:
        rows.append(f'    {{0x{code:04X}, "{escaped(c.upper())}", "{escaped(c.title())}"}},')
body = "\n".join(rows)
target = pathlib.Path(__file__).parent.parent / "src/tokenizer/jinja/case_table.cc"
target.write_text(f"""// Written by tools/make_case_table.py.
#include "tokenizer/jinja/case_table.h"

namespace cadre::jinja {{

const std::array<SpecialCase, {len(rows)}> kSpecialCases = {{{{
{body}
}}}};

}}  // namespace cadre::jinja
""")
header = target.with_suffix(".h")
header.write_text(f"""// Upper and title case of the characters that become several, sorted by code point.
// Written by tools/make_case_table.py.
#pragma once

#include <array>
#include <string_view>

namespace cadre::jinja {{

struct SpecialCase {{
  char32_t code_point;
  std::string_view upper, title;  // UTF-8
}};
extern const std::array<SpecialCase, {len(rows)}> kSpecialCases;

}}  // namespace cadre::jinja
""")
