"""An extraction that is killed again and again until it gets through; run by test_feature_cache.

Prints how often it was killed, how many finished rows changed afterwards, whether the targets are right, and
the digests of the result and of an undisturbed extraction.
"""

import hashlib
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from beliefmatch.adaptation.cache import FeatureCache, FeatureFile
from beliefmatch.adaptation.features import extract
from small_features import data, network


def forked(directory):
    child = os.fork()
    if child == 0:
        try:
            model = network()

            def slowly(inputs):
                time.sleep(0.004)
                return model(inputs)

            extract(model, slowly, data(), key_parts={}, cache=FeatureCache(directory), batch_size=5)
            os._exit(0)
        finally:
            os._exit(1)
    return child


def finished(directory):
    """The bytes of each row that is there."""
    for path in directory.glob("*.features"):
        with path.open("rb", buffering=0) as file:
            found = FeatureFile.opened(file)
            records = [] if found is None else found._records()
            return {row: one.tobytes() for row, one in enumerate(records) if one["checksum"]}
    return {}


def killed(child, directory, after):
    """Kill a child so many seconds after it has written rows; whether it was still alive."""
    before, end = len(finished(directory)), None
    while end is None or time.perf_counter() < end:
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        if end is None and len(finished(directory)) > before:
            end = time.perf_counter() + after
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def main(directory):
    rng, kills, changed, before = random.Random(0), 0, 0, {}
    while kills < 4 and killed(forked(directory), directory, rng.uniform(0, 0.02)):
        kills += 1
        now = finished(directory)
        changed += sum(now.get(row) != content for row, content in before.items())
        before = now
    assert os.waitpid(forked(directory), 0)[1] == 0
    now = finished(directory)
    changed += sum(now.get(row) != content for row, content in before.items())
    model = network()
    found = extract(model, model, data(), key_parts={}, cache=FeatureCache(directory))
    alone = extract(model, model, data(), key_parts={}, cache=None, batch_size=5)
    digests = [hashlib.sha256(np.asarray(one.rows).tobytes()).hexdigest() for one in (found, alone)]
    print(kills, changed, torch.equal(found.targets, alone.targets), *digests)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
