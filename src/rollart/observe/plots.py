"""A run as one picture: reward and success, lags, time by phase, busy devices, and a timeline.

Invariant: drawn from a `History` alone; no global matplotlib state is touched, so it can be drawn
in any process. The timeline shows a few steps from the middle of the run at full resolution.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rollart.core.events import Phase, Work
from rollart.observe.history import History
from rollart.observe.intervals import Interval, clipped
from rollart.observe.summary import RunSummary, summary_of
from rollart.observe.words import duration, number, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TIMELINE_STEPS = 5
MOST_BARS = 60
MOST_DEVICES = 14
LEAST_SHOWN = 0.001
"""Shares below it are not seen in a bar, and have no place in its legend."""

PHASE_COLOURS = {
    Phase.GET_BATCH: "#c9ced6",
    Phase.ABORT_STALE: "#8c6bb1",
    Phase.SUSPEND: "#e7a33e",
    Phase.UPDATE: "#d1603d",
    Phase.RESUME: "#f2d06b",
    Phase.RECOMPUTE: "#a0522d",
    Phase.TRAIN_STEP: "#2b6cb0",
    Phase.PUBLISH: "#63b3ed",
}
WORK_COLOURS = {
    "train": "#2b6cb0",
    "prefill": "#8fd3b6",
    "mixed": "#57b98f",
    "decode": "#2f9e6e",
    "update": "#d1603d",
    "rebuild": "#a0522d",
    "publish": "#63b3ed",
    "score": "#90a4c8",
}
DOMAIN_COLOURS = ("#2f9e6e", "#2b6cb0", "#c2410c", "#8c6bb1", "#a0522d", "#0e7490")
BASELINE_STYLES = ("--", ":", "-.", (0, (1, 4)))
OTHER_COLOURS = ("#b5739d", "#7a7a52", "#5f9ea0", "#c28f5c")


def draw(history: History, path: Path, *, summary: RunSummary | None = None) -> None:
    """Write the picture of a run as PNG to `path`; `summary` is the history's, if it is there."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    summary = summary or summary_of(history)
    rows = _timeline_rows(history)
    figure = Figure(figsize=(13, 9.6 + 0.28 * len(rows)), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    grid = figure.add_gridspec(3, 2, height_ratios=(1, 1, 0.42 + 0.11 * len(rows)))
    figure.suptitle(_title(summary), fontsize=13, x=0.01, ha="left")
    _draw_quality(figure.add_subplot(grid[0, 0]), history, summary)
    _draw_lags(figure.add_subplot(grid[0, 1]), history, summary)
    _draw_phases(figure.add_subplot(grid[1, 0]), history)
    _draw_busy(figure.add_subplot(grid[1, 1]), summary)
    _draw_timeline(figure.add_subplot(grid[2, :]), history, rows, summary)
    canvas.print_png(path)


def _title(summary: RunSummary) -> str:
    parts = [
        f"{summary.run or 'run'}: {summary.protocol or 'unknown protocol'}, "
        f"alpha {number(summary.alpha, 0)}",
        f"{summary.steps} steps in {duration(summary.wall_s)}",
        f"{number(summary.tokens_per_s, 0)} tokens/s",
    ]
    if summary.partial is not None:
        parts.append("PARTIAL")
    return "   ·   ".join(parts)


def _prepare(axes: "Axes", title: str, *, over_steps: bool = False) -> None:
    if over_steps:
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("train step")
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e8eb", linewidth=0.8)
    axes.set_axisbelow(True)


def _known(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]


def _smoothed(values: Sequence[float | None], window: int) -> list[float]:
    """Mean over the last `window` known values at each place; NaN where there is none."""
    means: list[float] = []
    for end in range(1, len(values) + 1):
        known = [value for value in values[max(0, end - window) : end] if value is not None]
        means.append(sum(known) / len(known) if known else float("nan"))
    return means


def _draw_quality(axes: "Axes", history: History, summary: RunSummary) -> None:
    """Reward and success of one domain, or the success of each of several in its own colour."""
    tags = [domain.domain for domain in summary.domains]
    colours = {tag: DOMAIN_COLOURS[at % len(DOMAIN_COLOURS)] for at, tag in enumerate(tags)}
    if len(tags) > 1:
        _prepare(axes, "Success of all training trajectories, by domain", over_steps=True)
        curves = [(tag, colours[tag], _successes(history, tag)) for tag in tags]
    else:
        _prepare(axes, "Reward and success of all training trajectories", over_steps=True)
        curves = [
            ("reward", "#8a8f98", [row.reward for row in history.steps]),
            ("success", "#2f9e6e", [row.success for row in history.steps]),
        ]
    places = range(1, len(history.steps) + 1)
    window = max(1, len(history.steps) // 15)
    for label, colour, values in curves:
        mean = f", mean of {window}" if window > 1 else ""
        axes.plot(places, _known(values), color=colour, linewidth=0.8, alpha=0.35)
        axes.plot(
            places, _smoothed(values, window), color=colour, linewidth=2, label=f"{label}{mean}"
        )
    _draw_evaluations(axes, history, colours if len(tags) > 1 else {})
    for domain in summary.domains:
        for (name, success), style in zip(domain.baselines, BASELINE_STYLES, strict=False):
            axes.axhline(
                success,
                color=colours[domain.domain] if len(tags) > 1 else "#6b7280",
                linestyle=style,
                linewidth=1.2,
                label=name if len(tags) == 1 else None,
            )
    if len(tags) > 1:
        # A colour a domain says which; a line of words says the rest, where labels would be many.
        axes.set_xlabel(
            "train step (held-out: filled sampled, hollow greedy; broken lines: baselines)"
        )
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, loc="best", framealpha=0.85)


def _successes(history: History, domain: str) -> list[float | None]:
    """Success, or where a domain has none the reward, of each step."""
    values: list[float | None] = []
    for row in history.steps:
        found = next((one for one in row.domains if one.domain == domain), None)
        known = None if found is None else found.success
        values.append(found.reward if found is not None and known is None else known)
    return values


def _draw_evaluations(axes: "Axes", history: History, colours: Mapping[str, str]) -> None:
    """Held-out success: filled is sampled, hollow is greedy; one shape a domain."""
    last = len(history.steps)
    domains = list(dict.fromkeys(event.domain for event in history.evaluations))
    labelled: set[tuple[str, str]] = set()
    for event in history.evaluations:
        if event.success is None:
            continue
        at = {"before": 0, "after": last}.get(event.when)
        if at is None:
            at = min(event.version, last)
        colour = colours.get(event.domain, "#c2410c")
        name = f"held-out {event.domain}, {event.mode}"
        axes.plot(
            [at],
            [event.success],
            marker="oDs^v"[domains.index(event.domain) % 5],
            markersize=8,
            color=colour,
            markerfacecolor=colour if event.mode == "sampled" else "white",
            linestyle="none",
            clip_on=False,
            zorder=5,
            label=name if not colours and (event.domain, event.mode) not in labelled else None,
        )
        labelled.add((event.domain, event.mode))


def _draw_lags(axes: "Axes", history: History, summary: RunSummary) -> None:
    from matplotlib.ticker import MaxNLocator

    _prepare(axes, "Lags (versions)", over_steps=True)
    places = range(1, len(history.steps) + 1)
    axes.plot(
        places,
        [row.token_lag_max for row in history.steps],
        color="#c2410c",
        linewidth=1.4,
        drawstyle="steps-mid",
        label=f"token lag, maximum (run: {number(summary.token_lag_max, 0)})",
    )
    axes.plot(
        places,
        _known([row.start_lag_max for row in history.steps]),
        color="#8c6bb1",
        linewidth=1.4,
        linestyle="--",
        drawstyle="steps-mid",
        label=f"start lag, maximum (run: {number(summary.start_lag_max, 0)})",
    )
    axes.plot(
        places,
        [row.token_lag_mean for row in history.steps],
        color="#374151",
        linewidth=1.8,
        label=f"token lag, mean (run: {number(summary.token_lag_mean)})",
    )
    top = max([row.token_lag_max for row in history.steps], default=0)
    if summary.alpha is not None:
        bound = summary.alpha + 1 if summary.alpha else 0
        axes.axhline(bound, color="#9ca3af", linestyle=":", label=f"bound on token lag: {bound}")
        top = max(top, bound)
    axes.set_ylim(-0.15, top * 1.1 + 1)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(fontsize=8, loc="upper left", ncols=2, framealpha=0.85)


def _draw_phases(axes: "Axes", history: History) -> None:
    """Seconds of each phase, one bar a step, or the mean of several steps where there are many."""
    _prepare(axes, "Time by phase", over_steps=True)
    # The last weights, loaded for the evaluation after training, are no step of their own.
    order = sorted({span.step for span in history.phases if span.phase is Phase.GET_BATCH})
    place = {step: at for at, step in enumerate(order)}
    per_bar = max(1, -(-len(order) // MOST_BARS))
    bars = -(-len(order) // per_bar)
    bottoms = [0.0] * bars
    for phase in Phase:
        heights = [0.0] * bars
        for span in history.phases:
            if span.phase is phase and span.step in place:
                heights[place[span.step] // per_bar] += (span.end - span.begin) / per_bar
        if not any(heights):
            continue
        whole = sum(heights) * per_bar
        axes.bar(
            [(bar + 0.5) * per_bar + 0.5 for bar in range(bars)],
            heights,
            width=(0.9 if len(order) <= 30 else 1.0) * per_bar,
            bottom=bottoms,
            color=PHASE_COLOURS[phase],
            label=f"{phase.value.replace('_', ' ')} ({duration(whole)})",
        )
        bottoms = [below + height for below, height in zip(bottoms, heights, strict=True)]
    if per_bar > 1:
        axes.set_xlabel(f"train step (a bar is the mean of {per_bar})")
    axes.set_ylabel("seconds a step")
    axes.set_ylim(0, 1.35 * max(bottoms, default=0.0) or 1)
    if order:
        axes.legend(fontsize=8, loc="upper right", ncols=3, framealpha=0.85)


def _draw_busy(axes: "Axes", summary: RunSummary) -> None:
    _prepare(axes, "Busy devices (share of the training time)")
    axes.grid(axis="y", visible=False)
    devices = summary.devices[:MOST_DEVICES]
    works = list(dict.fromkeys(work for share in devices for work, _ in share.by_work))
    for at, share in enumerate(devices):
        axes.barh(at, 1.0, color="#f1f3f5", height=0.62)
        left = 0.0
        for work, part in share.by_work:
            axes.barh(at, part, left=left, color=_work_colour(work, works), height=0.62)
            left += part
        axes.text(1.01, at, percent(share.busy), va="center", fontsize=9)
    axes.set_yticks(range(len(devices)), [f"{s.device} ({s.hardware})" for s in devices])
    axes.set_ylim(len(devices) - 0.4, -0.6 - 0.22 * max(len(devices), 2))
    axes.set_xlim(0, 1.08)
    axes.set_xlabel(
        f"training and generation at once: {duration(summary.overlap_s)} of "
        f"{duration(summary.train_s)}"
    )
    seen = {work for share in devices for work, part in share.by_work if part >= LEAST_SHOWN}
    handles = [_patch(_work_colour(work, works), work) for work in works if work in seen]
    if handles:
        axes.legend(handles=handles, fontsize=8, loc="upper left", ncols=5, frameon=False)


def _work_colour(work: str, works: Sequence[str]) -> str:
    others = [name for name in works if name not in WORK_COLOURS]
    if work in WORK_COLOURS:
        return WORK_COLOURS[work]
    return OTHER_COLOURS[others.index(work) % len(OTHER_COLOURS)]


def _patch(colour: str, label: str) -> object:
    from matplotlib.patches import Patch

    return Patch(color=colour, label=label)


def _timeline_rows(history: History) -> list[str]:
    """Devices from top to bottom: those that train first."""
    trains = {device for device, work in history.busy if work == Work.TRAIN}
    return sorted(history.hardware, key=lambda device: (device not in trains, device))[
        :MOST_DEVICES
    ]


def _timeline_window(history: History) -> Interval:
    """A few steps from the middle of the run."""
    if len(history.steps) <= TIMELINE_STEPS:
        return history.training_window
    first = (len(history.steps) - TIMELINE_STEPS) // 2
    return (history.steps[first].ended_at, history.steps[first + TIMELINE_STEPS].ended_at)


def _draw_timeline(
    axes: "Axes", history: History, devices: Sequence[str], summary: RunSummary
) -> None:
    window = _timeline_window(history)
    _prepare(axes, "Timeline of a few steps: what the six steps and the devices do")
    axes.grid(visible=False)
    # The longest first: recompute runs beside the train step and is drawn upon it.
    for span in sorted(history.phases, key=lambda span: span.begin - span.end):
        _strip(axes, 0, [(span.begin, span.end)], window, PHASE_COLOURS[span.phase])
    works = list(dict.fromkeys(work for _, work in history.busy))
    for at, device in enumerate(devices, 1):
        for (name, work), intervals in history.busy.items():
            if name == device:
                _strip(axes, at, intervals, window, _work_colour(work, works))
    _strip(axes, len(devices) + 1, history.overlap, window, "#111827")
    for place, row in enumerate(history.steps, 1):
        if window[0] < row.ended_at <= window[1]:
            axes.axvline(row.ended_at - window[0], color="#111827", linewidth=0.7, alpha=0.5)
            axes.annotate(
                f"step {place} ends",
                (row.ended_at - window[0], 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(-3, -2),
                textcoords="offset points",
                fontsize=7.5,
                ha="right",
                va="top",
                color="#374151",
            )
    axes.set_yticks(range(len(devices) + 2), ["six steps", *devices, "train + generate"])
    axes.set_ylim(len(devices) + 1.5, -0.85)
    axes.set_xlim(0, max(window[1] - window[0], 1e-9))
    axes.set_xlabel("seconds")
    present = {span.phase for span in history.phases if _meets((span.begin, span.end), window)}
    working = {
        work
        for (_, work), spans in history.busy.items()
        if any(_meets(span, window) for span in spans)
    }
    handles = [_patch(PHASE_COLOURS[p], p.value.replace("_", " ")) for p in Phase if p in present]
    handles += [
        _patch(_work_colour(work, works), f"device: {work}") for work in works if work in working
    ]
    if handles:
        axes.legend(
            handles=handles,
            fontsize=8,
            ncols=min(len(handles), 10),
            loc="upper center",
            bbox_to_anchor=(0.5, -0.16 - 0.5 / (len(devices) + 3)),
            frameon=False,
        )


def _meets(span: Interval, window: Interval) -> bool:
    return span[0] < window[1] and span[1] > window[0]


def _strip(
    axes: "Axes", row: int, intervals: Sequence[Interval], window: Interval, colour: str
) -> None:
    shown = clipped(intervals, window)
    if not shown:
        return
    axes.broken_barh(
        [(begin - window[0], end - begin) for begin, end in shown],
        (row - 0.36, 0.72),
        facecolors=colour,
    )
