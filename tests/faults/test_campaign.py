"""The campaigns' runner: finished cases are not run again, failed ones are, and failures are told."""

from tests.faults.campaign import Campaign, Case, run_campaign


def test_finished_cases_are_kept_and_failed_ones_run_again(tmp_path):
    runs, broken = [], True

    def even(folder, number):
        runs.append(number)
        (folder / "trace").touch()
        assert number % 2 == 0 or not broken, f"{number} is odd"
        return {"numbers": 1, "half": number / 2}

    def cases(seed):
        for number in (seed, seed + 1, seed + 2):
            yield Case(str(number), lambda folder, n=number: even(folder, n))

    campaign = Campaign("even", cases)
    first = run_campaign(campaign, 4, tmp_path)
    assert len(first["failures"]) == 1 and first["failures"][0].startswith("5: AssertionError: 5 is odd")
    assert first["counts"] == {"numbers": 2} and first["measured"] == {"4": {"half": 2.0}, "6": {"half": 3.0}}
    assert [path.name for path in (tmp_path / "even").iterdir()] == ["5"]
    broken = False
    second = run_campaign(campaign, 4, tmp_path)
    assert runs == [4, 5, 6, 5] and second["failures"] == [] and second["counts"] == {"numbers": 3}
