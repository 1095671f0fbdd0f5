"""Requests that schemathesis makes from the server's own description, against a real server."""

from contextlib import suppress

import pytest

from tests.server.server_parts import Words, listening

schemathesis = pytest.importorskip("schemathesis")


@pytest.mark.slow
def test_nothing_that_the_description_allows_or_forbids_ends_in_a_failure():
    from hypothesis import HealthCheck, given, settings
    from hypothesis.errors import Unsatisfiable

    verifier = Words()
    verifier.go.set()
    made = []
    with listening(verifier, body_patience=5.0) as port:
        schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{port}/openapi.json")
        for mode in schemathesis.GenerationMode:
            for found in schema.get_all_operations():
                operation = found.ok()
                drawn = operation.as_strategy(generation_mode=mode)

                @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
                @given(drawn)
                def one(case):
                    answer = case.call()
                    made.append(answer.status_code)
                    case.validate_response(
                        answer,
                        checks=[
                            schemathesis.checks.not_a_server_error,
                            *schemathesis.checks.CHECKS.get_by_names(
                                [
                                    "status_code_conformance",
                                    "content_type_conformance",
                                    "response_schema_conformance",
                                ]
                            ),
                        ],
                    )

                with suppress(Unsatisfiable):  # what takes nothing cannot be given wrong things
                    one()
    assert len(made) > 200
    assert max(made) < 500
