"""Requests that schemathesis generates from the server's own description, against a real server."""

from contextlib import suppress

import pytest

from tests.server.server_parts import Words, listening

schemathesis = pytest.importorskip("schemathesis")


@pytest.mark.slow
def test_generated_requests_never_cause_a_server_error():
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

                with suppress(Unsatisfiable):  # an operation without input cannot get invalid input
                    one()
    assert len(made) > 200
    assert max(made) < 500
