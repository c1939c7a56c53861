"""Attention.

`scaled_dot_product_attention` asks about the sizes of its mask only in order to expand it. `nn.TransformerEncoderLayer` calls a fused
encoder layer in eval mode. Torch 2.11 and 2.12 have no fake kernel for it; that of 2.13 keeps the strides of its input, but eager's result
is always contiguous.
"""

from __future__ import annotations

from treadle_shapes.torch import attention_backends
from treadle_shapes.torch.operators.declare import families, family
from treadle_shapes.torch.operators.record import Kind

family(
    "scaled_dot_product_attention",
    kind=Kind.ATTENTION,
    size_one_question="whether the mask has one row, or one for all heads",
    fake_function=attention_backends.attention,
)
families(
    "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_attention_math",
    kind=Kind.ATTENTION,
)
family("_native_multi_head_attention", kind=Kind.ATTENTION, casts_inside=True, decompose=True)
family("_masked_softmax", kind=Kind.NORMALISATION, decompose=True)
family(
    "_transformer_encoder_layer_fwd",
    kind=Kind.ATTENTION,
    casts_inside=True,
    fake_correction="fused encoder layer",
    decompose=True,
)
