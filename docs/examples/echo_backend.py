"""A backend that answers with the question."""

from sapo_edge.backends.backend import Backend, Support
from sapo_edge.errors import BackendError
from sapo_edge.policy import STOP_TEXT, CallHandle, CutAnswer, MemoryEstimate, Sample


class EchoPolicy:
    name = "an echo"
    backend = "echo"
    model_digest = "0" * 64
    threads = 1

    def room(self, prompt):
        return 2048 - sum(len(self.encode(turn.content)) for turn in prompt)

    def encode(self, text):
        return list(text.encode())

    def cut(self, text, ended, max_tokens):
        answer, stop, _ = text.partition(STOP_TEXT)
        ids = self.encode(answer + stop)
        kept = tuple(ids[:max_tokens])
        return CutAnswer(bytes(kept).decode(errors="replace"), len(kept) == len(ids) and (ended or stop != ""), kept)

    def generate(
        self, prompts, answers, max_tokens, temperature, seed, handle=None, *, use_adapter=True, stop_text="</answer>"
    ):
        handle = handle or CallHandle()
        groups = []
        for done, prompt in enumerate(prompts):
            handle.check()
            handle.report(done * answers, len(prompts) * answers)
            ids = self.encode(prompt[-1].content)[:max_tokens]
            text = bytes(ids).decode(errors="replace")
            groups.append([Sample(tuple(ids), text, (0.0,) * len(ids), True)] * answers)
        return groups

    def update(self, groups, settings, handle=None):
        raise BackendError("an echo can't learn", "start the node with --role generator")

    def save(self, directory):
        raise BackendError("an echo has nothing to save", "start the node with --role generator")

    def load(self, directory):
        pass

    def memory_estimate(self, groups, answers, prompt_tokens, max_tokens):
        return MemoryEstimate(sampler=1_000_000, learner=0, adapter=0, activations=0, runtime=20_000_000)

    def close(self):
        pass


def look(host, model):
    return Support(True, 0, "any machine has an echo", trains=False)


def open_echo(opening):
    return EchoPolicy(), ()


BACKEND = Backend("echo", "an echo", look, open_echo)
