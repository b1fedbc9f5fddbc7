"""`rollart init`: a starter job file.

Invariant: what is written is a valid job but for the model that it names, values that stand
there are the defaults unless a comment says why not, and nothing is ever written over.
"""

from pathlib import Path

from rollart.cli.common import BAD_INPUT, OK, fail

MODEL = "path/to/a/model"


def init(file: Path, *, model: Path | None) -> int:
    """Write `file`; `model` is a Hugging Face directory. Returns the exit code."""
    text = starter(None if model is None else str(model.resolve()))
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        return fail(BAD_INPUT, f"{file}: exists already; give another name, or remove it first")
    except OSError as error:
        return fail(BAD_INPUT, f"{file}: cannot be written: {error.strerror}")
    print(f"wrote {file}")
    if model is None:
        print(f"say in it which model to train (model.path), then: rollart check {file}")
    else:
        print(f"look it over, then: rollart check {file}")
    return OK


def starter(model: str | None = None) -> str:
    """The text of a starter job file."""
    path = (model or MODEL).replace("\\", "\\\\").replace('"', '\\"')
    return STARTER.replace("@MODEL@", path)


STARTER = """\
# A job for `rollart train`. A key that is left out has the default shown here.
# One key can be set for one run: rollart train job.toml --set run.steps=20
schema = 1                    # the version of this format

[run]
name = "run"                  # the run's directory is directory/name
directory = "runs"
seed = 0                      # everything random follows from it
steps = 100                   # train steps
# time_limit_s = 3600.0       # end earlier, this many seconds after the first rollout
trackers = []                 # besides metrics.jsonl: "tensorboard", "wandb" (offline)

[model]
path = "@MODEL@"    # a Hugging Face causal language model with a tokenizer
# make = "module:function"    # instead of path: a function that writes such a directory
context = 1024                # tokens of a trajectory, prompt and answers

[rollout]
batch_groups = 8              # a step trains 8 groups ...
group_size = 8                # ... of 8 trajectories of one task
engines = 1                   # or by hardware class: { H800 = 1, H20 = 2 }
# affinity = { FrozenLake = "H800", default = "H20" }
slots = 256                   # sequences that an engine holds at once
step_tokens = 4096            # tokens that an engine computes in one forward pass
kv = "recompute"              # after new weights; "keep" saves the time and mixes versions
dtype = "float32"             # or "bfloat16"

[protocol]
name = "rollart"              # or sync, sync_plus, one_off, areal
alpha = 1                     # staleness bound in versions; 0 is synchronous

[redundancy]
members = 0                   # spare trajectories a group
groups = 0                    # spare groups a batch
mode = "race"                 # the first to finish are kept, which favours the short;
                              # "unbiased": a spare only replaces what failed; or "adaptive"

[train]
advantage = "grpo"            # or rloo, rloo_norm, dr_grpo
advantage_eps = 1e-4          # added to the standard deviation of a group
drop_zero_variance = true     # groups of equal scores carry no signal
clip = [0.2, 0.28]            # the importance ratio stays within 1 - 0.2 and 1 + 0.28
correction = "behaviour"      # not the default "none": what is stale needs one; or "tis"
correction_cap = 2.0          # the largest weight of "tis"
entropy = 0.0                 # weight of the entropy bonus
learning_rate = 1e-5
final_learning_rate = 1.0     # share of it at the end of the run
weight_decay = 0.0
grad_clip = 1.0               # largest norm of the gradient
optimizer_steps = 1           # into which a batch is cut; must divide batch_groups
microbatch_tokens = 8192      # memory against speed; the gradient does not depend on it
dtype = "float32"

[[domains]]                   # one for each kind of task
tag = "FrozenLake"
environment = "rollart.backends.envs.frozen_lake:FrozenLake"    # or yours, beside this file
reward = "rollart.backends.rewards.episode:episode_return"      # the sum of the turns' rewards;
                              # or a URL: local://module:function, lambda://, fc://, https://, serve://
options = {}                  # handed to the environment
weight = 1.0                  # share of the groups
# group_size = 8              # rollout.group_size if left out
max_turns = 32
max_tokens = 64               # a turn
temperature = 1.0
envs_per_process = 16         # not the default 1: these may share, being replayable and quick

[timeouts]                    # seconds; nothing waits without a deadline
env_reset_s = 60.0
env_step_s = 30.0
reward_s = 30.0
episode_s = 600.0             # a whole trajectory
engine_s = 60.0               # an engine that is silent for so long is lost
weights_s = 60.0
train_s = 600.0               # a train step
stall_s = 120.0               # without progress the run ends with the reason

[faults]
attempts = 3                  # tries at each place of a group; fresh starts of a lost engine
max_dead_groups = 200         # lost in a row, before the domain is closed; the last ends the run
max_no_verdict = 0.5          # share of the latest 100 trajectories; above it the run ends

[eval]
tasks = 0                     # held-out tasks a domain, before and after training
every = 0                     # and after each so many steps (0: never)
"""
