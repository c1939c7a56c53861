"""Training through libraries: LoRA adapters of peft, Hugging Face's Trainer, and a plain loop with gradient accumulation, clipping,
autocast and a moving average of the weights."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import treadle

torchvision_schemas = pytest.importorskip("torchvision_schemas")
torchvision_schemas.define_missing_schemas()  # transformers imports torchvision where it is there
transformers = pytest.importorskip("transformers")


def language_model() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2, use_cache=False, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def tokens(n: int, length: int = 8) -> torch.Tensor:
    return torch.randint(0, 50, (n, length), generator=torch.Generator().manual_seed(n))


def assert_close(mine: Any, theirs: Any) -> None:
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_low_rank_adapters() -> None:
    peft = pytest.importorskip("peft")

    def adapted() -> nn.Module:
        config = peft.LoraConfig(r=2, lora_alpha=4, lora_dropout=0.1, target_modules=["c_attn"])
        model = peft.get_peft_model(language_model(), config)
        torch.manual_seed(1)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:  # zero at first, so that nothing reaches the other half
                nn.init.normal_(parameter, std=0.1)
        return model

    found = []
    for compiler in (lambda m: m, treadle.compile):
        model = adapted().train()
        run = compiler(model)
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, 1e-2)
        torch.manual_seed(2)
        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = run(input_ids=tokens(3), labels=tokens(3)).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        assert all(p.grad is None for p in model.parameters() if not p.requires_grad)
        found.append([*losses, *[p.grad for p in trained]])
    assert_close(found[1], found[0])
    assert not treadle.stats().eager_graphs


def test_the_trainer_of_hugging_face(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    data = [{"input_ids": row, "labels": row} for row in tokens(12)]

    def train(model: Any, wrapped: Any) -> list[torch.Tensor]:
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            max_steps=4,
            per_device_train_batch_size=3,
            gradient_accumulation_steps=2,
            max_grad_norm=1.0,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            seed=7,
            disable_tqdm=True,
        )
        transformers.Trainer(model=wrapped, args=arguments, train_dataset=data).train()
        return [p.detach() for p in model.parameters()]

    eager, model = language_model(), language_model()
    expected = train(eager, eager)
    model.forward = treadle.compile(model.forward)  # the Trainer reads the model's class and signature
    assert_close(train(model, model), expected)
    assert treadle.stats().graphs >= 1 and not treadle.stats().eager_graphs


def test_a_plain_loop() -> None:
    """Accumulation over two batches, bfloat16 autocast, clipping, a schedule, a moving average, and a layer frozen half-way."""
    found = []
    for compiler in (lambda m: m, treadle.compile):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Dropout(0.1), nn.Linear(32, 4))
        average = copy.deepcopy(model)
        run = compiler(model)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
        torch.manual_seed(3)
        losses = []
        for step in range(6):
            if step == 3:
                model[0].requires_grad_(False)
            for _ in range(2):
                with torch.autocast("cpu", torch.bfloat16):
                    loss = run(torch.randn(5, 8)).float().square().mean() / 2
                loss.backward()
                losses.append(loss.detach())
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            with torch.no_grad():
                for kept, new in zip(average.parameters(), model.parameters(), strict=True):
                    kept.lerp_(new, 0.1)
        found.append((losses, [p.detach() for p in average.parameters()]))
    for mine, theirs in zip(found[1], found[0], strict=True):
        for one, other in zip(mine, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=5e-2, atol=5e-3)
    stats = treadle.stats()
    assert stats.graphs == 2 and not stats.eager_graphs
