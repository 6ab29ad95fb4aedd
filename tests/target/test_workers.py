"""Threads that help: also when Python starts none any more."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading

import pytest

from tc.target.workers import Workers, for_each


def test_results_come_in_order_and_errors_are_raised() -> None:
    assert for_each(lambda n: n * n, range(20), 3) == [n * n for n in range(20)]
    assert for_each(str, [], 4) == [] and for_each(str, [1], 1) == ["1"]
    with pytest.raises(ZeroDivisionError):
        for_each(lambda n: 1 // n, [1, 0, 2], 2)


def test_work_that_no_thread_takes_is_done_by_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with Workers(2) as pool:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        done = pool.submit(threading.get_ident)
        failed = pool.submit(lambda: 1 // 0)
        monkeypatch.undo()

    assert done.result() == threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        failed.result()


# Broke: "cannot schedule new futures after interpreter shutdown", from threads that ordinary scripts leave running.
def test_models_are_compiled_saved_and_loaded_after_the_main_thread_has_ended(tmp_path: object) -> None:
    script = """
        import sys, threading, time
        import numpy as np
        import tc
        from tc.demo import MODEL_PATH as model


        def work() -> None:
            threading.main_thread().join()
            for _ in range(2):
                module = tc.compile(model, threads=2)
            module.save(sys.argv[1] + "/m.tcm")
            tc.load(sys.argv[1] + "/m.tcm")
            print("done", flush=True)

        threading.Thread(target=work).start()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script), str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["done"], done.stderr
