"""Pictures of what `tarantella.bench` has found, as SVG."""

# Of models, in the order of the records.
COLOURS = ("#1b6ca8", "#d1495b", "#4f8f6f", "#c98a12", "#8d6a9f", "#555555")
# Of variants of more than one rank; what is one process is paler.
OURS, OURS_ALONE, PLAIN, APART, RIVALS = "#1b6ca8", "#a3c4de", "#bbbbbb", "#7fb894", "#d1495b"


def svg(body, title, width=760, height=360):
    """A picture around these elements, on white: pages may be dark."""
    head = (
        '<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" '
        'font-family="sans-serif" font-size="12">'.format(width, height)
    )
    text = (
        '<title>{0}</title><rect width="100%" height="100%" fill="white"/>'
        '<text x="20" y="24" font-size="15">{0}</text>'.format(title)
    )
    return "\n".join([head, text] + body + ["</svg>", ""])


def text(x, y, words, anchor="start"):
    """A text of a picture."""
    return '<text x="{:.0f}" y="{:.0f}" text-anchor="{}">{}</text>'.format(x, y, anchor, words)


def speed_up(records):
    """Throughput against ranks beside the ideal one: for each model a line of this layer, and a
    dashed one of each rival.
    """
    most = max(record["ranks"] for record in records if record["variant"] == "tarantella")
    lines = [("ideal", [(ranks, ranks) for ranks in range(1, most + 1)], PLAIN, False)]
    for number, name in enumerate(dict.fromkeys(record["model"] for record in records)):
        colour = COLOURS[number % len(COLOURS)]
        of_model = [record for record in records if record["model"] == name]
        for variant in dict.fromkeys(record["variant"] for record in of_model):
            if variant in ("plain", "apart"):
                continue
            points = [
                (record["ranks"], record["throughput_by_plain"])
                for record in of_model
                if record["variant"] == variant
            ]
            ours = variant == "tarantella"
            words = name if ours else "{}, {}".format(name, variant)
            # A rival has no run of one rank: its line begins at the plain process.
            lines.append((words, sorted(points if ours else [(1, 1)] + points), colour, not ours))
    return _speed_up_of(lines, most)


def _speed_up_of(lines, most):
    """The picture of lines: name, points, colour, and whether they are dashed."""
    top = max(value for _, points, _, _ in lines for _, value in points)
    left, right, high, legend = 60, 460, 70, 490
    low = high + max(260, 20 * len(lines))

    def place(ranks, value):
        return (
            left + (right - left) * (ranks - 1) / max(1, most - 1),
            low - (low - high) * value / top,
        )

    body = [
        text(20, 46, "times the throughput of one plain process, same global batch"),
        text((left + right) / 2, low + 38, "ranks", "middle"),
        text(740, high - 8, "{} ranks".format(most), "end"),
    ]
    for number in range(1, most + 1):
        x, y = place(number, number)
        body.append(text(x, low + 18, str(number), "middle"))
        body.append(text(left - 8, y + 4, "{} x".format(number), "end"))
        body.append('<path d="M{} {:.1f}H{}" stroke="#e4e4e4"/>'.format(left, y, right))
    axes = '<path d="M{} {}V{}H{}" fill="none" stroke="black"/>'
    body.append(axes.format(left, high, low, right))
    for number, (name, points, colour, dashed) in enumerate(lines):
        places = [place(*point) for point in points]
        style = 'stroke="{}" stroke-width="2"{}'.format(
            colour, ' stroke-dasharray="6 4"' if dashed else ""
        )
        body.append(
            '<polyline points="{}" fill="none" {}/>'.format(
                " ".join("{:.1f},{:.1f}".format(*each) for each in places), style
            )
        )
        body += [
            '<circle cx="{:.1f}" cy="{:.1f}" r="3" fill="{}"/>'.format(*each, colour)
            for each in places
        ]
        y = high + 12 + 20 * number
        body.append('<path d="M{} {}h28" {}/>'.format(legend, y - 4, style))
        body.append(text(legend + 36, y, name))
        body.append(text(740, y, "{:.2f} x".format(points[-1][1]), "end"))
    return svg(body, "Speed-up of training", height=low + 54)


def cpu_seconds(records):
    """CPU time of an epoch by that of a plain process: a bar for each variant, with the seconds,
    and a line from the least to the most of the rounds.
    """
    top = max(record["cpu_by_plain_spread"][1] for record in records)
    left, length = 240, 340
    words = "of an epoch, all ranks, by that of one plain process; lines: least to most of rounds"
    body, y = [text(20, 46, words)], 62
    for name in dict.fromkeys(record["model"] for record in records):
        body.append(text(20, y + 12, name))
        for record in (record for record in records if record["model"] == name):
            words = "{} x {}".format(record["variant"], record["ranks"])
            body.append(text(left - 8, y + 12, words, "end"))
            ends = [length * each / top for each in record["cpu_by_plain_spread"]]
            body.append(
                '<rect x="{}" y="{}" width="{:.1f}" height="14" fill="{}"/>'.format(
                    left, y, length * record["cpu_by_plain"] / top, _colour(record)
                )
            )
            spread = '<path d="M{0:.1f} {2}H{1:.1f}M{0:.1f} {3}v6M{1:.1f} {3}v6" stroke="black"/>'
            body.append(spread.format(left + ends[0], left + ends[1], y + 7, y + 4))
            words = "{cpu_by_plain:.2f} x, {epoch_cpu_s:.2f} s".format(**record)
            body.append(text(left + ends[1] + 8, y + 12, words))
            y += 20
        y += 10
    return svg(body, "CPU time of training", height=y + 10)


def _colour(record):
    """That of a variant's bar."""
    if record["variant"] == "tarantella":
        return OURS if record["ranks"] > 1 else OURS_ALONE
    return {"plain": PLAIN, "apart": APART}.get(record["variant"], RIVALS)
