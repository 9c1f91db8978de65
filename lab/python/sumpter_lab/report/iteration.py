"""One iteration of a profile: when each layer computes, and when gradients are ready to go."""

from __future__ import annotations

from itertools import accumulate

from sumpter.launch.figures import format_bytes, format_seconds
from sumpter.profiles import Profile
from sumpter_lab.report import theme
from sumpter_lab.report.blocks import Figure, Section, Table

_LARGEST = 12


def section(name: str, profile: Profile) -> Section:
    """The timeline of an iteration on one device, and its largest gradients."""
    order = [profile.tensors[index] for index in profile.ready_order]
    half = profile.bytes / 2
    sums = list(accumulate(tensor.bytes for tensor in order))
    middle = next(tensor for tensor, total in zip(order, sums, strict=True) if total >= half)
    return Section(
        title=f"One iteration: {profile.name}",
        source=name,
        findings=(
            f"{format_bytes(profile.bytes)} of gradients in "
            f"{len(profile.tensors)} tensors, {format_seconds(profile.iteration_s)} an iteration; "
            f"half of the bytes are ready {format_seconds(middle.ready_s)} after the backward "
            f"pass of {format_seconds(profile.backward_s)} began.",
        ),
        figures=(_layers(profile), _ready(profile, sums)),
        tables=(_largest(profile),),
        facts={
            "source": profile.source,
            "device": profile.device or "not known",
            "batch size": profile.batch_size or "not known",
            "layers": len(profile.layers),
        },
    )


def _layers(profile: Profile) -> Figure:
    """Bars: the forward pass in order, then the backward pass in reverse."""
    import plotly.graph_objects as go

    forward = profile.forward_times_s
    backward = [layer.backward_s for layer in reversed(profile.layers)]
    names = [layer.name for layer in profile.layers]
    ends = list(accumulate(forward))
    starts = [end - time for end, time in zip(ends, forward, strict=True)]
    # The backward pass of the profile, which its layers fill only if all were seen.
    begin = profile.iteration_s - profile.backward_s
    later = list(accumulate(backward, initial=begin))[:-1]
    plot = go.Figure()
    passes = (
        ("forward", starts, forward, names, theme.BLUE),
        ("backward", later, backward, names[::-1], theme.VERMILION),
    )
    for label, bases, times, labels, shade in passes:
        plot.add_bar(
            y=[label] * len(times),
            base=[1e3 * base for base in bases],
            x=[1e3 * time for time in times],
            customdata=[theme.plain(one) for one in labels],
            hovertemplate="%{customdata}: %{x:.3f} ms<extra></extra>",
            name=label,
            orientation="h",
            marker={
                "color": shade,
                # Neighbours differ, so that layers can be distinguished.
                "opacity": [1 if index % 2 else 0.65 for index in range(len(times))],
                "line": {"width": 0},
            },
            showlegend=False,
        )
    theme.finish(plot, x="ms since the iteration began", y="", height=200, barmode="overlay")
    plot.update_yaxes(autorange="reversed")
    rows = [
        (layer.name, 1e3 * time, 1e3 * layer.backward_s)
        for layer, time in zip(profile.layers, forward, strict=True)
    ]
    return Figure(
        title="Layers",
        alt=f"Times of {len(rows)} layers: forward {1e3 * profile.forward_s:.3g} ms, then "
        f"backward {1e3 * profile.backward_s:.3g} ms.",
        plot=plot,
        table=Table("Times of the layers", ("layer", "forward (ms)", "backward (ms)"), rows),
        note="Times of the forward pass fill what the iteration spends outside its backward pass.",
    )


def _ready(profile: Profile, sums: list[int]) -> Figure:
    import plotly.graph_objects as go

    order = [profile.tensors[index] for index in profile.ready_order]
    times = [1e3 * tensor.ready_s for tensor in order]
    plot = go.Figure()
    plot.add_scatter(
        x=[0, *times],
        y=[0, *(total / 1e6 for total in sums)],
        customdata=["", *(theme.plain(tensor.name) for tensor in order)],
        hovertemplate="%{x:.3f} ms: %{y:.2f} MB, with %{customdata}<extra></extra>",
        mode="lines",
        line={"shape": "hv", "color": theme.BLUE, "width": 2},
        fill="tozeroy",
        name="ready",
        showlegend=False,
    )
    theme.finish(
        plot, x="ms since the backward pass began", y="MB of gradients that are ready", height=320
    )
    rows = [
        (tensor.name, time, tensor.bytes / 1e6, total / 1e6)
        for tensor, time, total in zip(order, times, sums, strict=True)
    ]
    heads = ("gradient", "ready (ms)", "MB", "MB until then")
    return Figure(
        title="Gradients that are ready to be sent",
        alt=f"Bytes of gradients over the backward pass, up to {profile.bytes / 1e6:.4g} MB.",
        plot=plot,
        table=Table("Gradients in the order in which they get ready", heads, rows),
        note="A steep end means that most bytes come last, when no computing is left to hide them.",
    )


def _largest(profile: Profile) -> Table:
    largest = sorted(profile.tensors, key=lambda tensor: -tensor.bytes)[:_LARGEST]
    rows = [
        (tensor.name, format_bytes(tensor.bytes), f"{tensor.bytes / profile.bytes:.1%}")
        for tensor in largest
    ]
    return Table("The largest gradients", ("gradient", "size", "of all bytes"), rows)
