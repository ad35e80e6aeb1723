"""Hidden tests: honest programs pass those that are right, and no way to cheat the harness pays."""

from collections.abc import Iterator

import pytest

from hone.core.errors import DataError
from hone.sandbox.examination import OutputTest, run_output_tests, run_tests
from hone.sandbox.frames import SandboxPolicy
from hone.sandbox.run import CodeSandbox

POLICY = SandboxPolicy(cpu_s=0.5, wall_s=30.0, output_bytes=20_000)
TESTS = ["assert add(1, 2) == 3", "assert add(-1, 1) == 0", "assert add('a', 'b') == 'ab'"]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[CodeSandbox]:
    with CodeSandbox(POLICY) as opened:
        yield opened


@pytest.mark.parametrize(
    ("code", "passed"),
    [
        ("def add(a, b): return a + b", [True, True, True]),
        ("def add(a, b): return 3", [True, False, False]),
        ("add = lambda a, b: a + b", [True, True, True]),
        ("def add(a, b): return a + int(b)", [True, True, False]),
        ("def sub(a, b): return a - b", [False, False, False]),
        ("def add(a, b", [False, False, False]),
        ("1 / 0", [False, False, False]),
        ("while True: pass", [False, False, False]),
        ("import os\ndef add(a, b):\n    if a == -1: os._exit(0)\n    return a + b", [True, False, True]),
        ("def add(a, b):\n    while a == -1: pass\n    return a + b", [True, False, True]),
        ("def add(a, b):\n    print('x' * 10**6 * (a == -1))\n    return a + b", [True, False, True]),
        ("def add(a, b): return bytearray(10**10)", [False, False, False]),
        ("if __name__ == '__main__': 1 / 0\ndef add(a, b): return a + b", [True, True, True]),
    ],
)
def test_each_test_has_its_outcome(sandbox: CodeSandbox, code: str, passed: list[bool]) -> None:
    outcomes = run_tests(sandbox, code, TESTS)
    assert [one.passed for one in outcomes] == passed
    assert all(one.reason for one in outcomes if not one.passed)


CHEATS = {
    "exit early with 0": "import os\nos._exit(0)",
    "exit at the first call": "import os\ndef add(a, b): os._exit(0)",
    "sys.exit": "import sys\ndef add(a, b): sys.exit(0)",
    "leave through an exception of the end": "def add(a, b): raise SystemExit(0)",
    "an object that equals everything": (
        "class All:\n    def __eq__(self, other): return True\n    def __hash__(self): return 0\n"
        "def add(a, b): return All()"
    ),
    "a number that equals everything": (
        "class All(int):\n    def __eq__(self, other): return True\ndef add(a, b): return All(77)"
    ),
    "a list with such a number": (
        "class All(int):\n    def __eq__(self, other): return True\ndef add(a, b): return [All(77)]"
    ),
    "patch the equality of numbers": (
        "import builtins\nbuiltins.AssertionError = type('A', (BaseException,), {})\n"
        "builtins.__build_class__ = None\ndef add(a, b): return None"
    ),
    "patch assert by its exception": (
        "import builtins\nbuiltins.AssertionError = StopIteration\ndef add(a, b): raise AssertionError"
    ),
    "read what is wanted from the caller's frames": (
        "import sys\ndef add(a, b):\n    frame = sys._getframe()\n    while frame:\n        for value in "
        "list(frame.f_locals.values()):\n            if isinstance(value, str) and '== ' in value:\n"
        "                return eval(value.split('== ')[1])\n        frame = frame.f_back"
    ),
    "read the tests from memory": (
        "import gc\ndef add(a, b):\n    gc.unfreeze()\n    for one in gc.get_objects():\n        if isinstance(one, "
        "(list, dict, tuple)):\n            for text in (one.values() if isinstance(one, dict) else one):\n"
        "                if isinstance(text, str) and f'add({a!r}, {b!r}) ' + '==' in text:\n"
        "                    return eval(text.split('==')[1])"
    ),
    "read the tests from files": (
        "import glob\ndef add(a, b):\n    for name in glob.glob('/**/*', recursive=True)[:2000]:\n        try:\n"
        "            text = open(name).read()\n        except Exception:\n            continue\n"
        "        if f'add({a!r}' in text: return eval(text.split('==')[1].splitlines()[0])"
    ),
    "print that the tests have passed": (
        "import os\nprint('ALL TESTS PASSED')\nfor fd in range(1, 20):\n    for line in (b'{\"loaded\": true}\\n', "
        'b\'{"passed": true, "reason": ""}\\n\' * 3):\n        try: os.write(fd, line)\n        except OSError: pass\n'
        "os._exit(0)"
    ),
    "speak the harness's protocol": (
        'import os\ndef add(a, b):\n    os.write(3, b\'{"passed": true, "reason": ""}\\n\' * 9)\n    os._exit(0)'
    ),
    "answer with a reply of its own": (
        "import os\ndef add(a, b):\n    os.write(3, b'{\"value\": true}\\n' * 9)\n    os._exit(0)"
    ),
    "at the end of the process": (
        "import atexit, os\natexit.register(lambda: print('passed'))\ndef add(a, b): raise KeyboardInterrupt"
    ),
    "overwrite the test": (
        "import os\nfor folder, _, names in os.walk('.'):\n    for name in names:\n"
        "        open(os.path.join(folder, name), 'w')\n"
        "open('test.py', 'w').write('')\nopen('json.py', 'w').write('passed = True')\ndef add(a, b): return None"
    ),
    "a stop that ends a loop of checks": "def add(a, b): raise StopIteration",
    "claim that it was not confined": "import os\nos.write(2, b'no')\nos._exit(78)",
    "close what it has": "import os\nos.closerange(0, 100)\ndef add(a, b): return 3",
    "flood the reports": "import os\ndef add(a, b):\n    while True: os.write(3, b'x' * 1000)",
    "nonsense": "import os\ndef add(a, b): os.write(3, b'[' * 19000 + b'\\n')",
    "a value that is none": 'import os\ndef add(a, b): os.write(3, b\'{"value": {"~": "set", "of": [[]]}}\\n\')',
    "signal the harness": (
        "import os, signal\ndef add(a, b):\n    for pid in (os.getppid(), *range(1, 40)):\n"
        "        try: os.kill(pid, 9)\n        except OSError: pass\n    return None"
    ),
}


@pytest.mark.parametrize("name", CHEATS)
def test_no_way_to_cheat_pays(sandbox: CodeSandbox, name: str) -> None:
    loops = "assert all(map(lambda case: add(*case) == 3, [(1, 2), (2, 1)]))"
    outcomes = run_tests(sandbox, CHEATS[name], [*TESTS, loops])
    assert [one.passed for one in outcomes] == [False] * 4, name


@pytest.mark.parametrize(
    ("code", "test"),
    [
        ("def f(x): x.sort()", "x = [2, 1]\nf(x)\nassert x == [1, 2]"),
        ("def f(x): x['a'] = 1", "x = {}\nf(x)\nassert x == {'a': 1}"),
        ("def f(x): return (x, {x}, {x: 1.5}, b'a', 1j, None)",
         "assert f(2) == (2, {2}, {2: 1.5}, b'a', 2j / 2, None)"),
        ("def f(x): raise ValueError('no')",
         "try:\n    f(1)\n    assert False\nexcept ValueError as e:\n    assert 'no' in str(e)"),
        ("def f(n):\n    for i in range(n): yield i", "assert list(f(3)) == [0, 1, 2]\nassert sum(f(4)) == 6"),
        ("class Node:\n    def __init__(self, v): self.v, self.next = v, None\ndef f(a): return a.v + a.next.v",
         "a = Node(1)\na.next = Node(2)\nassert a.v == 1\nassert f(a) == 3"),
        ("class Solution:\n    def twice(self, x): return 2 * x", "assert Solution().twice(x=4) == 8"),
        ("import math\ndef f(n): return math.factorial(n)", "import math\nassert f(2000) == math.factorial(2000)"),
        ("def f(x, *, by=1): return x / by", "assert abs(f(1, by=3) - 0.333333) < 1e-5"),
        ("import numpy as np\ndef f(n): return np.arange(n).sum()", "assert f(4) == 6"),
        ("def f(x): return float('nan')", "assert f(1) != f(1)"),
        ("def f(): return 'a\\ud800b'", "assert f() == 'a\\ud800b'"),
    ],
)  # fmt: skip
def test_values_cross_as_they_are(sandbox: CodeSandbox, code: str, test: str) -> None:
    assert [(one.passed, one.reason) for one in run_tests(sandbox, code, [test])] == [(True, "")]


def test_a_setup_and_a_function_that_checks(sandbox: CodeSandbox) -> None:
    check = (
        "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(LIMIT) == LIMIT ** 2\ncheck(square)"
    )
    outcomes = run_tests(sandbox, "def square(x): return x * x", [check], setup="LIMIT = 10**6")
    assert [one.passed for one in outcomes] == [True]


@pytest.mark.parametrize(("setup", "tests"), [("1 / 0", ["assert f()"]), ("", ["assert f(", "assert f()"])])
def test_wrong_tests_are_a_fault_of_the_data(sandbox: CodeSandbox, setup: str, tests: list[str]) -> None:
    with pytest.raises(DataError, match="the tests cannot be run: "):
        run_tests(sandbox, "def f(): return 1", tests, setup=setup)


def test_output_is_compared_here(sandbox: CodeSandbox) -> None:
    tests = [OutputTest(stdin="1 2\n", output="3\n"), OutputTest(stdin="2 5\n", output="7")]
    right = "print(sum(map(int, input().split())), end=' \\n\\n')"
    assert [one.passed for one in run_output_tests(sandbox, right, tests)] == [True, True]
    assert [one.passed for one in run_output_tests(sandbox, right, tests, spaces="exact")] == [False, False]
    late = "print(3)\nraise ValueError"
    assert [one.reason for one in run_output_tests(sandbox, late, tests)] == ["ValueError", "ValueError"]
    assert [one.reason for one in run_output_tests(sandbox, "print(3)", tests)] == ["", "another output"]
