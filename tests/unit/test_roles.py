import pytest

from gpu_runtime.scheduling.requests import RequestKind
from gpu_runtime.scheduling.roles import KINDS, Device, Plan, Role, Roles
from storage.errors import SchedulingError


def fleet(plan: Plan, reserved: int = 2, spot: int = 2, holds: int | None = 1) -> Roles:
    roles = Roles(plan)
    for number in range(reserved):
        roles.join(Device(f"r{number}", "reserved", "reserved machine"), holds)
    for number in range(spot):
        roles.join(Device(f"s{number}", "spot", f"spot machine {number}"), holds)
    return roles


def names(roles: Roles, role: Role) -> list[str]:
    return [device.name for device in roles.having(role)]


def test_an_iteration_all_roll_out_then_spot_explores_while_the_reserved_train():
    roles = fleet(Plan.rollout(version=1))
    assert names(roles, Role.ROLLOUT) == ["r0", "r1", "s0", "s1"]
    changed = roles.follow(Plan.train(version=1))
    assert changed == {"r0": Role.TRAIN, "r1": Role.TRAIN, "s0": Role.EXPLORE, "s1": Role.EXPLORE}
    # Training has made version 2: who does not hold it loads it before it rolls out.
    roles.holds("r0", 2)
    changed = roles.follow(Plan.rollout(version=2))
    assert changed == {
        "r0": Role.ROLLOUT, "r1": Role.LOADING, "s0": Role.LOADING, "s1": Role.LOADING
    }  # fmt: skip
    assert roles.holds("s1", 2) == {"s1": Role.ROLLOUT}
    assert roles.plan == Plan.rollout(version=2)


def test_reserved_devices_that_do_not_train_explore():
    roles = fleet(Plan.train(1, trainers=["r0"]), spot=1)
    assert names(roles, Role.TRAIN) == ["r0"]
    assert names(roles, Role.EXPLORE) == ["r1", "s0"]


def test_when_all_spot_is_gone_the_reserved_ones_finish():
    roles = fleet(Plan.rollout(1, reserved_help=False))
    assert names(roles, Role.IDLE) == ["r0", "r1"]
    assert roles.leave("s0") == {}
    # One is left; when its end is announced, nobody will roll out any more.
    assert roles.drain("s1") == {"r0": Role.ROLLOUT, "r1": Role.ROLLOUT, "s1": Role.DRAINING}
    assert roles.drain("s1") == {}
    assert roles.leave("s1") == {}
    assert roles.leave("s1") == {}
    # New spot joins: it loads at first, and the reserved ones leave the rollout to it.
    joined = roles.join(Device("s2", "spot", "new machine"))
    assert joined == {"r0": Role.IDLE, "r1": Role.IDLE, "s2": Role.LOADING}
    assert roles.leave("s2") == {"r0": Role.ROLLOUT, "r1": Role.ROLLOUT}


def test_when_all_spot_is_gone_the_trainers_go_on_training():
    roles = fleet(Plan.train(1), spot=1)
    assert roles.leave("s0") == {}
    assert names(roles, Role.TRAIN) == ["r0", "r1"]


def test_a_newcomer_joins_in_once_it_holds_the_right_weights():
    roles = fleet(Plan.rollout(3), holds=3)
    assert roles.join(Device("s9", "spot", "m")) == {"s9": Role.LOADING}
    assert roles.holds("s9", 2) == {}  # not the right ones
    assert roles.holds("s9", 3) == {"s9": Role.ROLLOUT}
    assert roles.holds("s9", None) == {"s9": Role.LOADING}
    assert roles.join(Device("s8", "spot", "m"), holds=3) == {"s8": Role.ROLLOUT}


def test_a_trainer_without_the_weights_loads_them_first():
    roles = fleet(Plan.train(1), reserved=1, spot=0, holds=None)
    assert roles.role("r0") is Role.LOADING
    assert roles.holds("r0", 1) == {"r0": Role.TRAIN}


def test_a_device_with_nothing_to_do_needs_no_weights_until_it_has():
    roles = fleet(Plan.rollout(2, reserved_help=False), reserved=1, spot=1, holds=1)
    assert (roles.role("r0"), roles.role("s0")) == (Role.IDLE, Role.LOADING)
    assert roles.leave("s0") == {"r0": Role.LOADING}
    assert roles.holds("r0", 2) == {"r0": Role.ROLLOUT}


def test_a_draining_device_stays_so_through_phases_and_its_name_comes_back_fresh():
    roles = fleet(Plan.rollout(1))
    roles.drain("s0")
    assert "s0" not in roles.follow(Plan.train(1))
    assert roles.holds("s0", 1) == {}
    assert roles.role("s0") is Role.DRAINING
    roles.leave("s0")
    assert roles.join(Device("s0", "spot", "m"), holds=1) == {"s0": Role.EXPLORE}


def test_what_a_role_may_pull():
    explore_only = frozenset({RequestKind.EXPLORE})
    assert KINDS[Role.ROLLOUT] == frozenset(RequestKind)
    assert KINDS[Role.EXPLORE] == explore_only
    assert [role for role in Role if not KINDS[role]] == [Role.TRAIN, Role.IDLE, Role.LOADING, Role.DRAINING]


def test_unknown_and_doubled_devices_are_refused():
    roles = fleet(Plan.rollout(1))
    with pytest.raises(SchedulingError, match="'s0' is there already"):
        roles.join(Device("s0", "spot", "m"))
    for ask in (roles.role, roles.drain, lambda name: roles.holds(name, 1)):
        with pytest.raises(SchedulingError, match="'nobody' is not in the table"):
            ask("nobody")
