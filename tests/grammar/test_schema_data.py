"""Real-world schemas and the official test suite: nothing is ever wrong."""

import json

import pytest

from phloem.errors import ConstraintError
from phloem.grammar.testing import accepts_json


def _verdicts(compiler, schema, tests):
    """("refused", why), or the tests whose verdict is not the expected one."""
    try:
        wrong = [
            test
            for test in tests
            if accepts_json(schema, test["data"], tokenizer=compiler) is not test["valid"]
        ]
    except ConstraintError as error:
        return "refused", error.message
    return "checked", wrong


def _dev(shared, step):
    return [json.loads(path.read_text()) for path in sorted(shared.glob("schemas/dev/*"))[::step]]


def _count(compiler, cases):
    right = 0
    for case in cases:
        verdict, found = _verdicts(compiler, case["schema"], case["tests"])
        assert verdict == "refused" or not found, (case["id"], found)
        right += verdict == "checked"
    return right


def test_real_schemas(compiler, shared):
    """Of every tenth real-world schema all instances are judged right."""
    cases = _dev(shared, 10)
    assert _count(compiler, cases) == len(cases) == 20


@pytest.mark.slow
@pytest.mark.model
def test_all_real_schemas_with_the_real_tokenizer(real, shared):
    """None of the 200 accepts an invalid instance or rejects a valid one, at least 190 compile."""
    assert _count(real, _dev(shared, 1)) >= 190


def test_the_official_suite(compiler, shared):
    """No group is judged wrong; refused are those that nothing satisfies, and three more."""
    refused = []
    for path in sorted(shared.glob("suite/*.json")):
        for group in json.loads(path.read_text()):
            verdict, found = _verdicts(compiler, group["schema"], group["tests"])
            if verdict == "refused":
                if any(test["valid"] for test in group["tests"]):
                    refused.append(group["description"])
                continue
            assert not found, (path.name, group["description"], found)
    assert sorted(refused) == [
        "collect annotations inside a 'not', even if collection is disabled",
        "remote ref, containing refs itself",
        "validate definition against metaschema",
    ]
