"""What a token fills of the cache: as written, as known, or unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from ext_authz.config import load

DATA = Path(__file__).parent.parent / "data" / "config"
POOL = """
admission_control:
  pools:
    - name: p
      models: [meta-llama/Llama-3.1-8B-Instruct, deepseek-r1, nobody-knows]
      endpoints: ["http://a:8000"]
      model_shapes: {}
"""
LLAMA, DEEPSEEK = "meta-llama/Llama-3.1-8B-Instruct", "deepseek-r1"
KNOWN = {LLAMA: 131_072.0, DEEPSEEK: 70_272.0}


@pytest.mark.parametrize(
    ("written", "changed"),
    [
        ("{}", {}),
        ("{deepseek-r1: {precision: fp8}}", {DEEPSEEK: 35_136.0}),
        ("{deepseek-r1: {kv_bytes_per_token: 1.5}}", {DEEPSEEK: 1.5}),
        (
            "{nobody-knows: {layers: 4, kv_heads: 2, head_dim: 64}}",
            {"nobody-knows": 2048.0},
        ),
        (
            "{nobody-knows: {layers: 61, latent_dim: 576, precision: fp32}}",
            {"nobody-knows": 140_544.0},
        ),
        (
            "{meta-llama/Llama-3.1-8B-Instruct: {layers: 1, kv_heads: 1, head_dim: 1}}",
            {LLAMA: 4.0},
        ),
    ],
)
def test_shapes(tmp_path: Path, written: str, changed: dict[str, float]) -> None:
    """Known names need nothing; what is written for one counts, and for that one only."""
    path = tmp_path / "config.yaml"
    path.write_text(POOL.replace("model_shapes: {}", f"model_shapes: {written}"))
    pool = load(path).settings.admission.pools["p"]
    assert pool.kv_token_bytes == KNOWN | changed


def test_every_key_reaches_the_settings() -> None:
    """A pool that names its models, and one that serves any."""
    pools = load(DATA / "full.yaml").settings.admission.pools
    assert pools["primary"].kv_token_bytes == {"llama-70b": 160 * 1024}
    assert pools["economy"].kv_token_bytes == {"own": 2048}
