#!/usr/bin/env python3
"""Draw the plan of one kind of layer as SVG, from `cadre serve MODEL ... --explain-json`.

  cadre serve MODEL --tp-size 4 ... --explain-json | tools/draw_layer_plan.py > docs/pictures/NAME.svg

One lane a rank, from top to bottom. Squares are rows of the step: two that each rank owns, in its colour. Boxes are what a
rank does by itself; bars across lanes are collectives, over the ranks that they cover.
"""
import argparse
import json
import sys
from xml.sax.saxutils import escape

LEFT, LANE, GAP, TOP = 150, 178, 14, 62
ROWS = 2
FONT = "font-family='sans-serif'"
COLOURS = ["#2f6fb3", "#d1741f", "#3a8f4d", "#a8456f", "#7a5cb0", "#8a6d3b", "#34939c", "#6b6b6b"]
MODES = {"SCATTERED": "its slice of its own rows", "TP_ATTN_FULL": "all rows of its data-parallel rank", "FULL": "all rows of all ranks",
         "MOE_FULL": "all rows of its dense group"}


def ranges(ids):
    out, i = [], 0
    while i < len(ids):
        j = i
        while j + 1 < len(ids) and ids[j + 1] == ids[j] + 1:
            j += 1
        out.append(str(ids[i]) if i == j else f"{ids[i]}-{ids[j]}")
        i = j + 1
    return ", ".join(out)


class Picture:
    def __init__(self, plan, layer):
        self.plan, self.layer, self.layout, self.ranks = plan, layer, plan["layout"], plan["ranks"]
        self.y, self.parts = TOP, []

    def x(self, rank):
        return LEFT + rank * (LANE + GAP)

    def text(self, x, y, text, size=12, anchor="start", weight="normal", colour="#222"):
        self.parts.append(f"<text x='{x}' y='{y}' {FONT} font-size='{size}' text-anchor='{anchor}' font-weight='{weight}' fill='{colour}'>{escape(text)}</text>")

    def rect(self, x, y, w, h, fill, stroke="#555", radius=4):
        self.parts.append(f"<rect x='{x}' y='{y}' width='{w}' height='{h}' rx='{radius}' fill='{fill}' stroke='{stroke}'/>")

    def members(self, group):
        """The ranks of each group of this kind."""
        if group == "world" or (group == "dense_tp" and self.layout["dense_tp"] == self.layout["world"]):
            return [[r["rank"] for r in self.ranks]]
        lanes = {}
        for r in self.ranks:
            lanes.setdefault(r["attn_dp"], []).append(r["rank"])
        return list(lanes.values())

    def held(self, rank, mode):
        """Ranks whose rows this one holds."""
        if mode == "SCATTERED":
            return [rank]
        group = {"TP_ATTN_FULL": "attn_tp", "FULL": "world", "MOE_FULL": "dense_tp"}[mode]
        return next(m for m in self.members(group) if rank in m)

    def label(self, text, height):
        self.text(LEFT - 14, self.y + height / 2 + 4, text, 12, "end", colour="#555")

    def rows(self, mode):
        for r in self.ranks:
            owners = [o for o in self.held(r["rank"], mode) for _ in range(ROWS)]
            size = min(14, (LANE - 8) / len(owners) - 3)
            at = self.x(r["rank"]) + (LANE - len(owners) * (size + 3) + 3) / 2
            for i, owner in enumerate(owners):
                self.rect(round(at + i * (size + 3), 2), self.y, round(size, 2), round(size, 2), COLOURS[owner % len(COLOURS)], "none", 2)
        self.label(mode, 14)
        self.y += 24

    def boxes(self, lines_of, label=""):
        lines = [lines_of(r) for r in self.ranks]
        height = 12 + 16 * max(len(l) for l in lines)
        for r, ls in zip(self.ranks, lines):
            self.rect(self.x(r["rank"]), self.y, LANE, height, "#f4f4f1")
            for i, line in enumerate(ls):
                self.text(self.x(r["rank"]) + LANE / 2, self.y + 18 + 16 * i, line, 12, "middle")
        self.label(label, height)
        self.y += height + 10

    def bar(self, group, text, owns=False):
        for lanes in self.members(group):
            first, last = self.x(lanes[0]), self.x(lanes[-1]) + LANE
            self.rect(first, self.y, last - first, 26, "#ffe9b8" if not owns else "#cfe8cf", "#8a6d1f" if not owns else "#3a7a45", 13)
            self.text((first + last) / 2, self.y + 17, text, 12, "middle", "bold")
        self.label("owns the sum" if owns else "", 26)
        self.y += 36

    def crossings(self, down=True):
        """Rows on their way: a line from each rank to each other one that may hold its experts."""
        top, bottom = self.y - 4, self.y + 26
        for a in self.ranks:
            for b in self.ranks:
                xa, xb = self.x(a["rank"]) + LANE / 2, self.x(b["rank"]) + LANE / 2
                colour = COLOURS[(a if down else b)["rank"] % len(COLOURS)]
                self.parts.append(f"<line x1='{xa}' y1='{top}' x2='{xb}' y2='{bottom}' stroke='{colour}' stroke-width='1.5' opacity='0.7'/>")
        self.y += 36

    def attention(self):
        half = self.layer["attention"]
        split = self.layout["attn_tp"] > 1
        self.boxes(lambda r: ["norm"], "attention")
        if half["gather"] != "none":
            self.bar(half["gather"], "all-gather")
        self.rows(half["scatter_mode"])
        self.boxes(lambda r: ["attention, own KV cache"] + ([f"heads: part {r['attn_tp'] + 1} of {self.layout['attn_tp']}"] if split else ["all heads"]))
        if half["reduce"] != "none":
            self.bar(half["reduce"], "reduce-scatter", True)
        self.rows("SCATTERED")
        self.boxes(lambda r: ["+ residual"])

    def expert_lines(self, r):
        part = f", part {r['moe_tp'] + 1} of {self.layout['moe_tp']}" if self.layout["moe_tp"] > 1 else ""
        ids = ranges(r["experts"])
        return ["experts " + (ids if len(ids) < 20 else ids[:16] + " ...") + part]

    def feed_forward(self):
        half, sparse = self.layer["feed_forward"], self.layer["kind"] == "sparse"
        exchange = half["exchange"]
        routes_own = sparse and exchange != "none"
        self.boxes(lambda r: ["norm"] + ([f"router: {self.plan['model']['top_k']} of {self.plan['model']['experts']} experts"] if routes_own else []), "feed-forward")
        if half["gather"] != "none":
            self.bar(half["gather"], "all-gather" + (" (rows and their routes)" if routes_own else ""))
            self.rows(half["scatter_mode"])
        elif exchange != "none":
            self.rows(half["scatter_mode"])
            self.bar("world", f"dispatch ({exchange}): a row goes to the ranks of its experts, nowhere else")
            self.crossings()
        shared = ["shared expert, on own rows"] if sparse and self.plan["model"]["has_shared_expert"] and routes_own else []
        if sparse:
            head = [] if routes_own else [f"router: {self.plan['model']['top_k']} of {self.plan['model']['experts']} experts"]
            self.boxes(lambda r: head + self.expert_lines(r) + shared)
        else:
            self.boxes(lambda r: [f"gated MLP, part {r['rank'] % self.layout['dense_tp'] + 1} of {self.layout['dense_tp']}" if self.layout["dense_tp"] > 1 else "gated MLP"])
        if half["owner_of_sum"] == "combine":
            if half["gather"] == "none":
                self.crossings(False)
            what = "outputs return to the row's owner, who adds them in top-k order"
            if self.layout["combine"] == "per_rank":
                what = "each rank returns one sum a row to its owner, who adds those"
            self.bar("world", "combine: " + what, True)
        elif half["reduce"] != "none":
            self.bar(half["reduce"], "reduce-scatter", True)
        self.rows("SCATTERED")
        self.boxes(lambda r: ["+ residual"])

    def svg(self):
        l = self.layout
        kind, ids = self.layer["kind"], ranges(self.layer["layers"])
        self.rows("SCATTERED")
        self.attention()
        self.feed_forward()
        width, height = self.x(len(self.ranks)) + 4, self.y + 4
        body, self.parts = self.parts, []
        self.rect(0, 0, width, height, "white", "none", 0)
        title = f"A {kind} layer ({ids}) on {l['world']} ranks: attention dp {l['attn_dp']} x tp {l['attn_tp']}"
        title += f", experts ep {l['ep']} x tp {l['moe_tp']}" + (f", {l['exchange']}" if l["ep"] > 1 else "") if kind == "sparse" else f", dense tp {l['dense_tp']}"
        self.text(12, 22, title, 15, weight="bold")
        for r in self.ranks:
            self.rect(self.x(r["rank"]), 34, LANE, 20, COLOURS[r["rank"] % len(COLOURS)], "none")
            self.text(self.x(r["rank"]) + LANE / 2, 48, f"rank {r['rank']}  (dp {r['attn_dp']}, tp {r['attn_tp']})", 12, "middle", "bold", "white")
        head = f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' viewBox='0 0 {width} {height}'>"
        return "\n".join([head] + self.parts + body + ["</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", nargs="?", help="file that --explain-json wrote; standard input unless given")
    parser.add_argument("--kind", choices=["sparse", "dense"], default="sparse")
    args = parser.parse_args()
    plan = json.load(open(args.plan, encoding="utf-8") if args.plan else sys.stdin)
    layers = [l for l in plan["layers"] if l["kind"] == args.kind]
    if not layers:
        sys.exit(f"draw_layer_plan: expected a model with {args.kind} layers, found none; choose another --kind")
    sys.stdout.write(Picture(plan, layers[0]).svg())


if __name__ == "__main__":
    main()
