from retinanet.config_file import load_config
from retinanet.preflight.findings import Finding
from retinanet.preflight.run import check_batch_split, check_groups


def checked(split: str, *, ranks: int) -> list[Finding]:
    words = ["training.batch_size=2", f"distributed.batch_split={split}"]
    return check_batch_split(load_config("demo.yaml", words), ranks=ranks)


def test_a_list_of_the_planned_ranks_is_told_and_even_batches_are_not() -> None:
    [found] = checked("[3, 1]", ranks=2)
    assert (found.level, found.found) == ("ok", "3 images on rank 0, 1 on rank 1")
    assert checked("even", ranks=2) == []


def test_a_list_of_other_ranks_is_a_failure() -> None:
    [found] = checked("[3, 1]", ranks=4)
    assert found.level == "failure"
    assert found.found.startswith("distributed.batch_split: expected 4 numbers with the sum 8 ")


def test_groups_are_told_where_there_are_several_and_a_failure_where_ranks_do_not_fit() -> None:
    def found(groups: int, *, ranks: int) -> list[Finding]:
        return check_groups(load_config("demo", [f"distributed.groups={groups}"]), ranks=ranks)

    assert found(1, ranks=3) == []
    [fits] = found(2, ranks=4)
    assert (fits.subject, fits.level) == ("compute groups", "ok")
    assert fits.found == "2 of 2 ranks, none waits for another"
    [fails] = found(2, ranks=3)
    assert fails.level == "failure" and fails.found.startswith("distributed.groups: 2 groups ")
