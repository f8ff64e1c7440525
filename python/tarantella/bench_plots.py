"""Pictures of what `tarantella.bench` has found, as SVG."""

COLOURS = ("#1b6ca8", "#d1495b", "#66a182", "#edae49", "#8d6a9f", "#555555")


def svg(body, title, width=640, height=360):
    """A picture around these elements."""
    head = (
        '<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" '
        'font-family="sans-serif" font-size="12">'.format(width, height)
    )
    text = (
        '<rect width="100%" height="100%" fill="white"/><text x="20" y="24"'
        ' font-size="15">{}</text>'.format(title)
    )
    return "\n".join([head, text] + body + ["</svg>", ""])


def text(x, y, words, anchor="start"):
    """A text of a picture."""
    return '<text x="{:.0f}" y="{:.0f}" text-anchor="{}">{}</text>'.format(x, y, anchor, words)


def speed_up(records):
    """Throughput against ranks, a line for each model, beside the ideal one."""
    records = [record for record in records if record["variant"] == "tarantella"]
    most = max(record["ranks"] for record in records)
    top = max([most] + [record["throughput_by_plain"] for record in records])
    left, right, low, high = 60, 460, 310, 50

    def place(ranks, value):
        return (
            left + (right - left) * (ranks - 1) / max(1, most - 1),
            low - (low - high) * value / top,
        )

    body = [
        '<path d="M{} {}V{}H{}" fill="none" stroke="black"/>'.format(left, high, low, right),
        text((left + right) / 2, low + 36, "ranks", "middle"),
        text(20, 44, "throughput by one plain process"),
    ]
    for ranks in range(1, most + 1):
        body.append(text(place(ranks, 0)[0], low + 18, str(ranks), "middle"))
        body.append(text(left - 8, place(1, ranks)[1] + 4, str(ranks), "end"))
    lines = [("ideal", [(ranks, ranks) for ranks in range(1, most + 1)], "#bbbbbb")]
    for number, name in enumerate(sorted({record["model"] for record in records})):
        own = sorted((r["ranks"], r["throughput_by_plain"]) for r in records if r["model"] == name)
        lines.append((name, own, COLOURS[number % len(COLOURS)]))
    for number, (name, points, colour) in enumerate(lines):
        places = [place(*point) for point in points]
        body.append(
            '<polyline points="{}" fill="none" stroke="{}" stroke-width="2"/>'.format(
                " ".join("{:.1f},{:.1f}".format(*each) for each in places), colour
            )
        )
        body += [
            '<circle cx="{:.1f}" cy="{:.1f}" r="3" fill="{}"/>'.format(*each, colour)
            for each in places
        ]
        body.append(
            '<rect x="480" y="{}" width="12" height="12" fill="{}"/>'.format(
                60 + 20 * number, colour
            )
        )
        body.append(text(498, 71 + 20 * number, name))
    return svg(body, "Speed-up of training")


def cpu_seconds(records):
    """CPU time of an epoch, a bar for each variant."""
    top = max(record["cpu_by_plain"] for record in records)
    names = sorted({(record["variant"], record["ranks"]) for record in records})
    body, y = [text(20, 44, "CPU time of all ranks by that of one plain process")], 60
    for name in dict.fromkeys(record["model"] for record in records):
        body.append(text(20, y + 12, name))
        for record in (record for record in records if record["model"] == name):
            colour = COLOURS[names.index((record["variant"], record["ranks"])) % len(COLOURS)]
            length = 320 * record["cpu_by_plain"] / top
            body.append(
                '<rect x="240" y="{}" width="{:.1f}" height="14" fill="{}"/>'.format(
                    y, length, colour
                )
            )
            body.append(
                text(232, y + 12, "{} x {}".format(record["variant"], record["ranks"]), "end")
            )
            body.append(text(246 + length, y + 12, "{:.2f}".format(record["cpu_by_plain"])))
            y += 20
        y += 10
    return svg(body, "CPU time of training", height=y + 20)
