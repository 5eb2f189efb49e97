"""e4m3 and int8 against float64 by enumeration. Legend: N rows, H hidden size."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specflow.features.quantise import E4M3_MAX, SMALLEST_SCALE, as_stored, dequantise, quantise

E4M3 = "float8_e4m3fn"


def e4m3_values() -> np.ndarray:
    """The 256 codes by the definition: 4 bits of exponent with bias 7, 3 of mantissa, no infinities."""
    values = np.empty(256)
    for code in range(256):
        sign, exponent, mantissa = code >> 7, (code >> 3) & 15, code & 7
        if exponent == 15 and mantissa == 7:
            values[code] = math.nan
        elif exponent == 0:
            values[code] = math.copysign(mantissa * 2.0**-9, -sign)
        else:
            values[code] = math.copysign((1 + mantissa / 8) * 2.0 ** (exponent - 7), -sign)
    return values


def nearest_e4m3(value: float) -> float:
    """The nearest value, ties to the even code, by looking at all of them."""
    table = [(abs(v - value), code & 1, v) for code, v in enumerate(e4m3_values()[:127])]
    found = min((abs(v - abs(value)), odd, v) for _, odd, v in table)[2]
    return math.copysign(found, value)


def rows_of(*values: list[float]) -> torch.Tensor:
    made = torch.tensor(values, dtype=torch.float64).bfloat16()
    assert torch.equal(made.double(), torch.tensor(values, dtype=torch.float64)), "not bfloat16 numbers"
    return made


def test_every_code_is_read_as_its_value() -> None:
    codes = torch.arange(256).to(torch.uint8)[None]
    for scale in (1.0, 2.0**-20, 2.0**100):
        found = dequantise(codes, torch.tensor([scale]).bfloat16(), E4M3)[0].double().numpy()
        assert np.array_equal(found, e4m3_values() * scale, equal_nan=True)


def test_every_code_is_written_as_itself() -> None:
    values = e4m3_values()
    keep = [c for c in range(256) if not math.isnan(values[c])]
    row = rows_of([values[c] for c in keep])  # 448 is among them, so the scale is 1
    codes, scales = quantise(row, E4M3)
    assert scales.tolist() == [1.0]
    assert codes[0].tolist() == keep


def test_e4m3_rounds_to_the_nearest_even_everywhere() -> None:
    # Every bfloat16 number from the largest down to where all becomes zero, in rows whose scale is 1.
    bits = torch.arange(0x3800, 0x43E1).to(torch.uint16)  # 2**-15 .. 448
    values = bits.view(torch.bfloat16)
    assert values[-1] == E4M3_MAX
    row = torch.cat([values, -values])[None]
    codes, scales = quantise(row, E4M3)
    found = dequantise(codes, scales, E4M3)[0].double().tolist()
    assert scales.item() == 1.0
    assert found == [nearest_e4m3(v) for v in row[0].double().tolist()]


@pytest.mark.parametrize(("largest", "scale"), [(448, 1), (450, 2), (449.9, 2), (224, 0.5), (225, 1), (1, 2.0**-8)])
def test_scale_of_e4m3_is_the_least_power_of_two(largest: float, scale: float) -> None:
    row = torch.tensor([[largest, -largest / 4, 0.0]]).bfloat16()
    codes, scales = quantise(row, E4M3)
    top = float(row.max())
    assert float(scales) == (scale if top == largest else 2.0 ** math.ceil(math.log2(top / E4M3_MAX)))
    assert float(scales) / 2 * E4M3_MAX < top <= float(scales) * E4M3_MAX
    assert abs(float(dequantise(codes, scales, E4M3)[0, 0]) - top) <= top / 16


def test_int8_rounds_exactly() -> None:
    # Every pair of significands: the largest value of a row, and another below it.
    tops = torch.arange(128, 256)
    others = torch.cat([torch.arange(128, 256) * 2.0**-k for k in range(9)])
    rows = torch.cat([tops[:, None].float(), others[None].expand(128, -1)], dim=1).bfloat16()
    rows = torch.where(rows.abs() <= rows[:, :1], rows, torch.zeros_like(rows))
    rows[:, 1::2] *= -1
    codes, scales = quantise(rows, "int8")
    exact = np.rint(rows.double().numpy() / scales.double().numpy()[:, None])  # float64: half to even
    assert np.array_equal(codes.numpy(), exact.astype(np.int8))
    assert codes.abs().max() <= 127
    ideal = rows[:, 0].double() / 127
    assert bool(((scales.double() >= ideal * (1 - 2**-23)) & (scales.double() <= ideal * (1 + 2**-7))).all())


@pytest.mark.parametrize("dtype", [E4M3, "int8"])
def test_rows_of_zero_and_of_almost_nothing(dtype: str) -> None:
    rows = torch.zeros(3, 4).bfloat16()
    rows[1, 2] = 2.0**-133  # the least subnormal
    codes, scales = quantise(rows, dtype)
    assert scales.tolist() == [SMALLEST_SCALE] * 3
    assert codes[0].tolist() == codes[2].tolist() == [0, 0, 0, 0]
    assert torch.equal(dequantise(codes, scales, dtype)[0], rows[0])


@pytest.mark.parametrize("dtype", [E4M3, "int8"])
def test_largest_numbers_do_not_overflow(dtype: str) -> None:
    top = torch.tensor(2.0**127).bfloat16()
    below = torch.nextafter(top, torch.zeros_like(top))
    for largest in (top, below):
        stored = as_stored(torch.stack([largest, -largest, torch.ones_like(top)])[None], dtype)
        assert bool(stored.isfinite().all())
        assert float(stored[0, 0]) == pytest.approx(float(largest), rel=1 / 16)


@pytest.mark.parametrize("dtype", [E4M3, "int8"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2.0**127 * 1.5])
def test_what_is_not_finite_is_refused(dtype: str, bad: float) -> None:
    rows = torch.ones(2, 3, 4).bfloat16()
    rows[1, 2, 3] = bad
    with pytest.raises(ValueError, match="found NaN, infinity or more in 1 of 6 rows"):
        quantise(rows, dtype)


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected bfloat16 rows, found torch.float32"):
        quantise(torch.ones(1, 2), E4M3)


rows_strategy = st.lists(st.lists(st.floats(-1, 1, width=16), min_size=4, max_size=4), min_size=1, max_size=6).flatmap(
    lambda rows: st.tuples(st.just(rows), st.integers(-60, 60))
)


@settings(max_examples=200, deadline=None)
@given(rows_strategy)
def test_round_trip_error_is_bounded(made: tuple[list[list[float]], int]) -> None:
    rows = (torch.tensor(made[0]) * 2.0 ** made[1]).bfloat16()
    exact, top = rows.double(), rows.double().abs().amax(dim=1, keepdim=True)
    fp8 = as_stored(rows, E4M3).double()
    # Half of the last of four significant bits, or half of the least code at the row's scale.
    scale = quantise(rows, E4M3).scales.double()[:, None]
    assert bool(((fp8 - exact).abs() <= torch.maximum(exact.abs() * 2**-4, scale * 2**-10)).all())
    whole = as_stored(rows, "int8").double()
    # Half a step, the scale's rounding, and bfloat16's when it is read.
    assert bool(((whole - exact).abs() <= top / 254 * (1 + 2**-7) + exact.abs() * 2**-8 + 2.0**-120).all())


@settings(max_examples=100, deadline=None)
@given(rows_strategy)
def test_e4m3_of_what_was_read_is_the_same_again(made: tuple[list[list[float]], int]) -> None:
    once = as_stored((torch.tensor(made[0]) * 2.0 ** made[1]).bfloat16(), E4M3)
    assert torch.equal(as_stored(once, E4M3), once)


def test_a_row_is_stored_alike_in_any_company() -> None:
    rows = torch.randn(5, 3, 16, generator=torch.Generator().manual_seed(1)).bfloat16()
    for dtype in (E4M3, "int8"):
        whole = as_stored(rows, dtype)
        assert torch.equal(torch.cat([as_stored(r[None], dtype) for r in rows]), whole)
        assert torch.equal(as_stored(rows.float(), dtype), whole)
    assert torch.equal(as_stored(rows, "bfloat16"), rows)
