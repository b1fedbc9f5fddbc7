"""The summary of a run as the object that `rollart report --json` prints.

Invariant: only names and nesting are chosen here; keys are added and never given a new meaning.
"""

from rollart.observe.bias import DomainBias
from rollart.observe.domains import DomainResult, Heldout
from rollart.observe.functions import as_object
from rollart.observe.idle import ClassAccount, DeviceAccount, IdleAccount
from rollart.observe.summary import RunSummary


def json_object(summary: RunSummary) -> dict[str, object]:
    """The summary as the object that `rollart report --json` prints."""

    def by_mode(sampled: float | None, greedy: float | None) -> dict[str, float | None]:
        return {"sampled": sampled, "greedy": greedy}

    ledger = summary.ledger
    return {
        "run": summary.run,
        "runtime": summary.runtime,
        "protocol": summary.protocol,
        "alpha": summary.alpha,
        "seed": summary.seed,
        "success_before": {
            d.domain: by_mode(d.success_at("before", "sampled"), d.success_at("before", "greedy"))
            for d in summary.domains
        },
        "success_after": {
            d.domain: by_mode(d.success_at("after", "sampled"), d.success_at("after", "greedy"))
            for d in summary.domains
        },
        "heldout_tasks": {d.domain: d.heldout_tasks for d in summary.domains},
        "heldout_scored": {d.domain: d.scored_after for d in summary.domains},
        "baselines": {d.domain: dict(d.baselines) for d in summary.domains},
        "domains": {d.domain: _domain(d) for d in summary.domains},
        "redundancy": {
            "members": summary.redundancy.members,
            "groups": summary.redundancy.groups,
            "mode": summary.redundancy.mode,
        },
        "steps": summary.steps,
        "steps_planned": summary.steps_planned,
        "trained_tokens": summary.trained_tokens,
        "batch_tokens": summary.batch_tokens,
        "wall_s": summary.wall_s,
        "train_s": summary.train_s,
        "tokens_per_s": summary.tokens_per_s,
        "start_lag_max": summary.start_lag_max,
        "token_lag_max": summary.token_lag_max,
        "token_lag_mean": summary.token_lag_mean,
        "ledger": {
            **dict(ledger.dispositions),
            "started": ledger.started,
            "buffered": ledger.buffered,
            "in_flight": ledger.in_flight,
            "balanced": ledger.balanced,
        },
        "functions": {use.url: as_object(use) for use in summary.functions},
        "logprob_gap_max": summary.logprob_gap_max,
        "logprob_gap_scored": summary.logprob_gap_scored,
        "logprob_gap_trained": summary.logprob_gap_trained,
        "logprob_gap_tokens": summary.logprob_gap_tokens,
        "phase_seconds": dict(summary.phase_seconds),
        "device_busy": {
            share.device: {
                "hardware": share.hardware,
                "busy": share.busy,
                "by_work": dict(share.by_work),
            }
            for share in summary.devices
        },
        "idle": _idle(summary.idle),
        "overlap_seconds": summary.overlap_s,
        "failures": dict(summary.failures),
        "interruptions": summary.interruptions,
        "engines_lost": summary.engines_lost,
        "requests_moved": summary.requests_moved,
        "late_results": summary.late_results,
        "warnings": summary.warnings,
        "ended": summary.ended,
        "ok": summary.ok,
        "partial": summary.partial,
    }


def _idle(idle: IdleAccount) -> dict[str, object]:
    def both(one: DeviceAccount | ClassAccount) -> dict[str, object]:
        return {"slots": one.slots, "shares": dict(one.shares), "wasted": dict(one.wasted)}

    return {
        "window_s": idle.window_s,
        "devices": {
            one.device: {
                "hardware": one.hardware,
                "role": one.role,
                "seconds": one.seconds,
                **both(one),
            }
            for one in idle.devices
        },
        "classes": [
            {"hardware": one.hardware, "role": one.role, "devices": one.devices, **both(one)}
            for one in idle.classes
        ],
    }


def _domain(result: DomainResult) -> dict[str, object]:
    modes = ("sampled", "greedy")
    return {
        "started": result.started,
        "dispositions": dict(result.dispositions),
        "failures": dict(result.failures),
        "closed": result.closed,
        "steps_trained": result.steps_trained,
        "reward": result.reward,
        "success": result.success,
        "turns": result.turns,
        "sampled_tokens": result.sampled_tokens,
        "elapsed_s": result.elapsed_s,
        "heldout_tasks": result.heldout_tasks,
        "heldout_scored": {
            mode: last.scored if (last := result.last("after", mode)) else 0 for mode in modes
        },
        "before": {mode: _heldout(result.last("before", mode)) for mode in modes},
        "after": {mode: _heldout(result.last("after", mode)) for mode in modes},
        "during": [_heldout(one) for one in result.during],
        "baselines": dict(result.baselines),
        "bias": _bias(result.bias),
    }


def _heldout(one: Heldout | None) -> dict[str, object] | None:
    if one is None:
        return None
    return {
        "when": one.when,
        "mode": one.mode,
        "version": one.version,
        "tasks": one.tasks,
        "scored": one.scored,
        "success": one.success,
        "score": one.score,
    }


def _bias(bias: DomainBias) -> dict[str, object]:
    return {
        "started": bias.started,
        "kept": bias.kept,
        "dropped": dict(bias.dropped),
        "censored": bias.censored,
        "slow_s": bias.slow_s,
        "slow_started": bias.slow_started,
        "slow_kept": bias.slow_kept,
        "reward_kept": bias.reward_kept,
        "reward_finished": bias.reward_finished,
        "reward_started": bias.reward_started,
        "reward_started_error": bias.reward_started_error,
        "notable": bias.notable,
        "by_duration": [
            {
                "upto_s": one.upto_s,
                "left": one.left,
                "kept": one.kept,
                "dropped": dict(one.dropped),
                "censored": one.censored,
            }
            for one in bias.bins
        ],
    }
