"""Whether a client is still writing may be asked by another thread at any moment."""

import threading
import time

import numpy as np
import pytest

from hone.core.errors import DataError
from hone.core.generation import Request, SamplingParams, generate
from hone.engine.clients.remote import RemoteEngine
from hone.engine.clients.wire import GenerateRequest, GenerateResponse, ServerFeatures
from hone.engine.session import TokenizerRules

ASKED = Request(id="p", prompt=np.array([1, 2], np.int32), samples=1, sampling=SamplingParams(max_tokens=3))


class SlowLink:
    """The client asks for its address while it takes an answer up: neither under way any more, nor finished."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    @property
    def url(self) -> str:
        self.asked.set()
        time.sleep(0.2)
        return "here"

    def interrupt(self) -> None: ...

    def close(self) -> None: ...


class OneAnswer:
    """A server that writes the same answer to everything."""

    refusal = ""

    def __init__(self) -> None:
        self.link = SlowLink()

    def probe(self) -> ServerFeatures:
        return ServerFeatures(server="fake", supported=frozenset(["tokens"]), context=None)

    def write(self, ask: GenerateRequest) -> GenerateResponse:
        tokens = np.arange(1, 1 + ask.max_tokens, dtype=np.int32)
        return GenerateResponse(
            tokens=tokens, logp=np.full(len(tokens), -1, np.float32), weight_labels=None, finish_reason="length"
        )


def test_an_answer_that_is_being_taken_up_counts():
    wire = OneAnswer()
    engine = RemoteEngine(wire, TokenizerRules(eos=(0,), vocab=8), slots=2, seed=0)  # pyright: ignore[reportArgumentType]
    engine.submit([ASKED])
    step = threading.Thread(target=engine._step)
    step.start()
    assert wire.link.asked.wait(300)
    assert engine.has_requests(), "a stream that looks at this moment must not end"
    step.join(300)
    with pytest.raises(DataError, match="being written already"):
        generate(engine, [ASKED])
    engine.cancel()
    assert not engine.has_requests()
    engine.close()
