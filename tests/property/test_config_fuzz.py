"""Whatever is typed after --set, the answer is a configuration or a ConfigurationError."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from storage.config.loading import differences, load_config
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError

TEXT = st.characters(exclude_categories=["Cs"], exclude_characters="\0")

SETTINGS = [
    "seed", "name", "iterations", "sampling", "sampling.noise_level", "adaptation.targets", "model.path",
    "price",
]  # fmt: skip
ODD = [
    "[", "[" * 3000, "{", "{a=1}", '"', "''", "true", "nan", "2026-01-01", "0x10", "1_0", "#", "9" * 5000,
]  # fmt: skip
values = st.one_of(st.text(max_size=40), st.integers().map(str), st.floats().map(str), st.sampled_from(ODD))


@given(key=st.one_of(st.sampled_from(SETTINGS), st.text(max_size=20)), value=values)
def test_set_raises_nothing_but_configuration_errors(key: str, value: str):
    try:
        load_config(None, [f"{key}={value}"], {})
    except ConfigurationError as error:
        assert str(error)


@given(name=st.text(alphabet="ABCXYZ_", max_size=12), value=values)
def test_the_environment_raises_nothing_but_configuration_errors(name: str, value: str):
    try:
        load_config(None, [], {f"SPOTLIGHT_{name}": value, "SPOTLIGHT_SAMPLING__NOISE_LEVEL": value})
    except ConfigurationError as error:
        assert str(error)


@given(
    seed=st.integers(0, 2**32 - 1),
    rate=st.floats(1e-12, 1),
    targets=st.lists(st.text(TEXT, max_size=8), max_size=4),
    path=st.text(TEXT, max_size=30),
)
def test_a_configuration_survives_json_and_its_own_differences(
    seed: int, rate: float, targets: list[str], path: str
):
    config = RunConfig.model_validate(
        {
            "seed": seed,
            "optimizer": {"learning_rate": rate},
            "adaptation": {"targets": targets},
            "model": {"path": path},
        }
    )
    assert RunConfig.model_validate_json(config.model_dump_json()) == config
    assert RunConfig.model_validate(differences(config)) == config
