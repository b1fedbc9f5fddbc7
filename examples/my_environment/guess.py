from rollart import StepResult, Task, as_observation


class Guess:
    """Find a number between 0 and 63; each wrong guess is answered with a hint."""

    replayable = True  # task, seed and actions determine an episode

    def reset(self, task: Task, seed: int) -> str:
        self.secret, self.guesses = seed % 64, 0
        return "Guess a number from 0 to 63. Answer with the number only."

    def step(self, action: str) -> StepResult:
        self.guesses += 1
        word = action.strip()
        guess = int(word) if word.isdecimal() and len(word) <= 2 else -1
        won = guess == self.secret
        hint = "Right!" if won else "Higher." if guess < self.secret else "Lower."
        return StepResult(
            observation=as_observation(hint),
            reward=1.0 if won else 0.0,
            done=won or self.guesses == 6,
            metrics=(("success", float(won)), ("guesses", float(self.guesses))),
        )
