# SPDX-License-Identifier: Apache-2.0
"""What peers.py found, as a table and as a picture. Both are made of the object that --json writes."""
import textwrap

BUSY_FROM = 0.05  # more than this for others, and figures say little; as in roofline_report.cpp
COLUMNS = ("types", "threads", "elements", "contender", "ns/elem", "GB/s", "of limit", "over limit", "p10", "p90",
           "over adamant", "note")


def cells(row):
    return (row["dtypes"], str(row["threads"]), str(row["elements"]), row["name"], f"{row['ns_per_element']:.3f}",
            f"{row['gb_per_s']:.1f}", f"{row['percent_of_limit']:.0f} %", f"{row['ratio_to_limit']:.3f}",
            f"{row['ratio_p10']:.3f}", f"{row['ratio_p90']:.3f}", f"{row['ratio_to_adamant']:.2f}", row["note"])


def paragraph(text):
    return textwrap.fill(text, 118, subsequent_indent="  ")


def missing_by_reason(result):
    """[(name, types, why)], with each reason said once; no types where it holds for all."""
    found = {}
    for each in result["missing"]:
        found.setdefault((each["name"], each["why"]), set()).add(each.get("dtypes"))
    everything = list(dict.fromkeys(row["dtypes"] for row in result["rows"]))
    return [(name, [t for t in everything if t in types and not types.issuperset(everything)], why)
            for (name, why), types in found.items()]


def table(result):
    rows = [cells(row) for row in result["rows"]]
    widths = [max(len(row[k]) for row in rows + [COLUMNS]) for k in range(len(COLUMNS))]
    left = {0, 3, len(COLUMNS) - 1}

    def line(row):
        return "  ".join(c.ljust(w) if k in left else c.rjust(w)
                         for k, (c, w) in enumerate(zip(row, widths))).rstrip()
    lines = [line(COLUMNS)]
    for above, row in zip([None] + rows, rows):
        if above is None or above[:3] != row[:3]:
            lines.append("")
        lines.append(line(row))
    in_cache = ("" if not result["small_elements"] else f", or, for {result['small_elements']} elements, which lie in "
                "cache, one that does nothing but its square root and its division")
    lines += ["", result["machine"], ", ".join(f"{k} {v}" for k, v in result["versions"].items()), paragraph(
        "Times are medians. Ratios are of times within a round: their median, p10 and p90; 'of limit' is 100 over the "
        f"first. The limit is a loop that moves the bytes of a step and does no arithmetic{in_cache}. GB/s counts the "
        "bytes that a step has to move, whatever a contender moves.")]
    others = result.get("share_of_others", 0)
    lines.append(f"Others had {100 * others:.1f} % of the processors meanwhile"
                 + ("; measure again when the machine is quiet." if others > BUSY_FROM else "."))
    for name, seconds in result["build_seconds"].items():
        lines.append(f"{name}: its op took {seconds:.0f} s to {'compile' if seconds > 5 else 'load'}.")
    lines.append("Missing:")
    for name, types, why in missing_by_reason(result):
        lines.append(textwrap.fill(f"{name}{' (' + ', '.join(types) + ')' if types else ''}: {why}", 118,
                                   initial_indent="  ", subsequent_indent="    "))
    return "\n".join(lines)


# ---------------------------------------------------------------------------------------------------------- the picture

WHAT = {"f32": "float32", "bf16_f32": "bfloat16 params,\nfloat32 moments",
        "mixed": "float32 state,\nbfloat16 grads\nand weights", "bf16": "bfloat16"}
LOOPS = ("plain loop", "separate passes")
OURS, LOOP, PEER = "#c8501e", "#9aa5b1", "#5b7fa6"


def bar_rows(result, names):
    """For each combination of types [(types, name)] of what has a line: who was measured, and missing peers."""
    has = {(row["dtypes"], row["name"]) for row in result["rows"]} | set(missing_peers(result))
    types = list(dict.fromkeys(row["dtypes"] for row in result["rows"]))
    return [[(t, name) for name in names if (t, name) in has] for t in types]


def missing_peers(result):
    """{(types, name): what to say instead of a bar}; our own loops need no excuse."""
    return {(m.get("dtypes"), m["name"]): "no such types" if "no such types" in m["why"] else "missing"
            for m in result["missing"] if m["name"] not in LOOPS}


def color(name):
    return OURS if name.startswith("adamant") else LOOP if name in LOOPS else PEER


def draw_bar(axes, y, row):
    percent = row["percent_of_limit"]
    low, high = 100 / row["ratio_p90"], 100 / row["ratio_p10"]
    axes.barh(y, percent, height=0.8, color=color(row["name"]), zorder=2)
    axes.plot([low, high], [y, y], color="#222222", linewidth=1, zorder=3)
    axes.text(max(high, percent) + 1.5, y, f"{percent:.0f} %", va="center", fontsize=8, zorder=4,
              fontweight="bold" if row["name"].startswith("adamant") else "normal")


def plot(result, path, names):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.transforms import blended_transform_factory

    large = max(row["elements"] for row in result["rows"])
    drawn = {(r["threads"], r["dtypes"], r["name"]): r for r in result["rows"] if r["elements"] >= large / 2}
    groups, excuses = bar_rows(result, names), missing_peers(result)
    threads = sorted({key[0] for key in drawn})
    bars = sum(map(len, groups)) + len(groups) - 1
    figure, panels = pyplot.subplots(1, len(threads), squeeze=False, sharey=True, sharex=True,
                                     figsize=(4.8 + 3.6 * len(threads), 1.9 + 0.22 * bars))
    for axes, count in zip(panels[0], threads):
        y, ticks, labels = 0, [], []
        for group in groups:
            if axes is panels[0][0]:
                axes.text(-0.74, y + len(group) / 2 - 0.5, WHAT[group[0][0]], fontsize=9, fontweight="bold",
                          va="center", ha="left",
                          transform=blended_transform_factory(axes.transAxes, axes.transData))
            for t, name in group:
                if (count, t, name) in drawn:
                    draw_bar(axes, y, drawn[count, t, name])
                elif (t, name) in excuses:
                    axes.text(1.5, y, excuses[t, name], va="center", fontsize=8, fontstyle="italic", color="#777777")
                ticks.append(y)
                labels.append(name)
                y += 1
            y += 1
        axes.axvline(100, color="#222222", linewidth=1, linestyle="--", zorder=1.5)
        axes.set_title("1 thread" if count == 1 else f"{count} threads", fontsize=10)
        axes.set_yticks(ticks)
        axes.set_yticklabels(labels, fontsize=9)
        axes.set_ylim(y - 1.4, -0.8)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", color="#e4e4e4", zorder=0)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
    top = max(100 / row["ratio_p10"] for row in drawn.values() if row["name"] != "limit")
    panels[0][0].set_xlim(0, max(115, top + 14))
    figure.suptitle("One AdamW step on the CPU: percent of the memory limit", fontsize=12, fontweight="bold")
    figure.supxlabel("100 %: a loop that moves the same bytes and does no arithmetic. Lines: p10 to p90 of rounds.\n"
                     f"{large / 1e6:.0f} million elements, {result['date']}, {result['machine'].split(';')[0]}",
                     fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
