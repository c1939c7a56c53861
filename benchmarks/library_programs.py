"""Small programs of libraries on top of PyTorch, for benchmarks/sweep.py: layers, solvers, flows, graphs, schedulers, metrics.

A program is a function without arguments that gives a callable, what it is called with by name, and random weights. A library that is
not installed makes its programs rows that were not built.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Program = tuple[Callable[..., Any], dict[str, Any]]


def _load(module: str, *names: str) -> Any:
    """A module of a library that need not be installed, or members of it."""
    found = importlib.import_module(module)
    return tuple(getattr(found, name) for name in names) if names else found


# ---- tensors and attention


def einops_patches() -> Program:
    rearrange, reduce = _load("einops", "rearrange", "reduce")

    def run(x: Any) -> Any:
        y = rearrange(x, "b c (h p) (w q) -> b (h w) (c p q)", p=2, q=2)
        return reduce(y, "b n d -> b d", "mean")

    return run, {"x": torch.randn(2, 3, 16, 16)}


def einx_products() -> Program:
    einx = _load("einx")

    return lambda x, y: einx.dot("b [c] n, [c] d -> b d n", x, y), {"x": torch.randn(2, 8, 5), "y": torch.randn(8, 4)}


def rotary_embedding_torch_queries() -> Program:
    RotaryEmbedding = _load("rotary_embedding_torch").RotaryEmbedding

    rotary = RotaryEmbedding(dim=16)
    return lambda x: rotary.rotate_queries_or_keys(x), {"x": torch.randn(1, 4, 32, 32)}


def local_attention_layer() -> Program:
    LocalAttention = _load("local_attention").LocalAttention

    layer = LocalAttention(dim=16, window_size=8, causal=True).eval()
    return layer, {name: torch.randn(2, 2, 32, 16) for name in "qkv"}


def linformer_model() -> Program:
    Linformer = _load("linformer").Linformer

    return Linformer(dim=32, seq_len=64, depth=2, heads=4, k=16).eval(), {"x": torch.randn(2, 64, 32)}


def performer_attention() -> Program:
    SelfAttention = _load("performer_pytorch").SelfAttention

    return SelfAttention(dim=32, heads=4, dim_head=8, causal=False).eval(), {"x": torch.randn(2, 32, 32)}


def perceiver_model() -> Program:
    Perceiver = _load("perceiver_pytorch").Perceiver

    model = Perceiver(
        num_freq_bands=4, depth=2, max_freq=10.0, input_channels=3, input_axis=2, num_latents=16, latent_dim=32
    )
    return model.eval(), {"data": torch.randn(1, 16, 16, 3)}


def reformer_model() -> Program:
    Reformer = _load("reformer_pytorch").Reformer

    return Reformer(dim=32, depth=1, heads=2, bucket_size=8, n_hashes=2).eval(), {"x": torch.randn(1, 32, 32)}


def product_key_memory_layer() -> Program:
    PKM = _load("product_key_memory").PKM

    return PKM(dim=32, heads=2, dim_head=16, num_keys=16, topk=4).eval(), {"x": torch.randn(2, 8, 32)}


def x_transformers_decoder() -> Program:
    Decoder, TransformerWrapper = _load("x_transformers", "Decoder", "TransformerWrapper")

    model = TransformerWrapper(
        num_tokens=99, max_seq_len=64, attn_layers=Decoder(dim=32, depth=2, heads=4, rotary_pos_emb=True)
    )
    return model.eval(), {"x": torch.randint(0, 99, (2, 16))}


def x_transformers_encoder() -> Program:
    ContinuousTransformerWrapper, Encoder = _load("x_transformers", "ContinuousTransformerWrapper", "Encoder")

    model = ContinuousTransformerWrapper(
        dim_in=8, dim_out=8, max_seq_len=64, attn_layers=Encoder(dim=32, depth=2, heads=4, ff_glu=True)
    )
    return model.eval(), {"x": torch.randn(2, 16, 8)}


def _vit(module: str, name: str, **options: Any) -> Callable[[], Program]:
    def build() -> Program:
        model = getattr(_load(module), name)
        sizes = {"image_size": 32, "patch_size": 8, "num_classes": 5, "dim": 32, "depth": 2, "heads": 4, "mlp_dim": 64}
        return model(**sizes, **options).eval(), {"img": torch.randn(2, 3, 32, 32)}

    return build


# ---- equations, flows, processes


class _Field(nn.Module):
    noise_type, sde_type = "diagonal", "ito"

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 3))

    def forward(self, t: Any, y: Any) -> Any:
        return self.inner(y)

    f = forward

    def g(self, t: Any, y: Any) -> Any:
        return torch.sigmoid(y)


def _odeint(method: str) -> Callable[[], Program]:
    def build() -> Program:
        odeint = _load("torchdiffeq").odeint

        field, times = _Field(), torch.linspace(0, 1, 5)
        return lambda y: odeint(field, y, times, method=method), {"y": torch.randn(4, 3)}

    return build


def torchsde_euler() -> Program:
    torchsde = _load("torchsde")

    field, times = _Field(), torch.linspace(0, 1, 5)

    def run(y: Any) -> Any:
        noise = torchsde.BrownianInterval(0.0, 1.0, size=(4, 3), entropy=3)
        return torchsde.sdeint(field, y, times, dt=0.1, method="euler", bm=noise)

    return run, {"y": torch.full((4, 3), 0.1)}


def normflows_real_nvp() -> Program:
    normflows = _load("normflows")

    layers: list[Any] = []
    for _ in range(3):
        layers += [normflows.flows.AffineCouplingBlock(normflows.nets.MLP([1, 16, 2])), normflows.flows.Permute(2)]
    model: Any = normflows.NormalizingFlow(normflows.distributions.base.DiagGaussian(2), layers).eval()
    return lambda x: model.log_prob(x), {"x": torch.randn(8, 2)}


def gpytorch_kernel() -> Program:
    gpytorch = _load("gpytorch")

    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=2))
    return lambda x: kernel(x).to_dense(), {"x": torch.rand(20, 2)}


def gpytorch_likelihood() -> Program:
    gpytorch = _load("gpytorch")

    class Process(gpytorch.models.ExactGP):  # type: ignore[misc]
        def __init__(self, x: Any, y: Any, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    x, y = torch.rand(20, 2), torch.randn(20)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    process = Process(x, y, likelihood).train()
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, process)
    return lambda x, y: marginal(process(x), y), {"x": x, "y": y}


# ---- graphs and symmetries


def _graph() -> dict[str, Any]:
    return {"x": torch.randn(12, 8), "edge_index": torch.randint(0, 12, (2, 40))}


def _convolution(name: str, *sizes: Any, **options: Any) -> Callable[[], Program]:
    def build() -> Program:
        geometric = _load("torch_geometric.nn")

        return getattr(geometric, name)(*sizes, **options).eval(), _graph()

    return build


def torch_geometric_gin() -> Program:
    geometric = _load("torch_geometric.nn")

    layer = geometric.GINConv(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)))
    return layer.eval(), _graph()


def torch_geometric_pooling() -> Program:
    geometric = _load("torch_geometric.nn")

    return lambda x, batch: geometric.global_mean_pool(x, batch, 3), {
        "x": torch.randn(12, 8),
        "batch": torch.arange(12) // 4,
    }


def e3nn_tensor_product() -> Program:
    o3 = _load("e3nn.o3")

    irreps = o3.Irreps("4x0e+4x1o")
    product: Any = o3.FullyConnectedTensorProduct(irreps, o3.Irreps("1x0e+1x1o+1x2e"), irreps)
    linear: Any = o3.Linear(irreps, irreps)

    def run(x: Any, v: Any) -> Any:
        return linear(product(x, o3.spherical_harmonics([0, 1, 2], v, True)))

    return run, {"x": torch.randn(10, 16), "v": torch.randn(10, 3)}


def e3nn_gate() -> Program:
    layers = _load("e3nn.nn")

    gate: Any = layers.Gate("4x0e", [torch.tanh], "2x0e", [torch.sigmoid], "2x1o")
    return lambda x: gate(x), {"x": torch.randn(10, 12)}


# ---- images and sound


def _kornia(name: str, *arguments: Any, **options: Any) -> Callable[[], Program]:
    def build() -> Program:
        kornia = _load("kornia")

        owner, _, function = name.rpartition(".")
        found = getattr(getattr(kornia, owner), function)
        return lambda x: found(x, *arguments, **options), {"x": torch.rand(2, 3, 24, 24)}

    return build


def kornia_warp() -> Program:
    kornia = _load("kornia")

    matrix = torch.eye(3)[None].repeat(2, 1, 1) + 0.01
    return lambda x: kornia.geometry.transform.warp_perspective(x, matrix, (20, 20)), {"x": torch.rand(2, 3, 24, 24)}


def segmentation_models_unet() -> Program:
    models = _load("segmentation_models_pytorch")

    return models.Unet("resnet18", encoder_weights=None, classes=2).eval(), {"x": torch.randn(1, 3, 64, 64)}


def pytorch_msssim_ssim() -> Program:
    pytorch_msssim = _load("pytorch_msssim")

    return lambda x, y: pytorch_msssim.ssim(x, y, data_range=1.0), {
        "x": torch.rand(2, 3, 32, 32),
        "y": torch.rand(2, 3, 32, 32),
    }


def torchmetrics_accuracy() -> Program:
    multiclass_accuracy = _load("torchmetrics.functional.classification").multiclass_accuracy

    return lambda x, y: multiclass_accuracy(x, y, num_classes=5, validate_args=False), {
        "x": torch.randn(32, 5),
        "y": torch.randint(0, 5, (32,)),
    }


def torchmetrics_correlation() -> Program:
    pearson_corrcoef = _load("torchmetrics.functional").pearson_corrcoef

    return lambda x, y: pearson_corrcoef(x, y), {"x": torch.randn(32), "y": torch.randn(32)}


def vector_quantize_layer() -> Program:
    VectorQuantize = _load("vector_quantize_pytorch").VectorQuantize

    layer = VectorQuantize(dim=16, codebook_size=32).eval()
    return lambda x: layer(x), {"x": torch.randn(2, 12, 16)}


def vector_quantize_fsq() -> Program:
    FSQ = _load("vector_quantize_pytorch").FSQ

    layer = FSQ([8, 5, 5]).eval()
    return lambda x: layer(x), {"x": torch.randn(2, 12, 3)}


# ---- diffusion


def diffusers_unet() -> Program:
    UNet2DModel = _load("diffusers").UNet2DModel

    model = UNet2DModel(
        sample_size=16,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    return model.eval(), {"sample": torch.randn(1, 3, 16, 16), "timestep": torch.tensor(3)}


def diffusers_autoencoder() -> Program:
    AutoencoderKL = _load("diffusers").AutoencoderKL

    model = AutoencoderKL(block_out_channels=(32,), norm_num_groups=8, sample_size=16)
    return model.eval(), {"sample": torch.randn(1, 3, 16, 16)}


def diffusers_transformer() -> Program:
    DiTTransformer2DModel = _load("diffusers").DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=16, in_channels=4, num_layers=2, sample_size=8, num_embeds_ada_norm=10
    )
    given = {"timestep": torch.tensor([3]), "class_labels": torch.tensor([1])}
    return model.eval(), {"hidden_states": torch.randn(1, 4, 8, 8), **given}


def diffusers_ddim_step() -> Program:
    DDIMScheduler = _load("diffusers").DDIMScheduler

    scheduler = DDIMScheduler()
    scheduler.set_timesteps(10)
    return lambda x, noise: scheduler.step(noise, 501, x).prev_sample, {
        "x": torch.randn(1, 3, 8, 8),
        "noise": torch.randn(1, 3, 8, 8),
    }


def denoising_diffusion_unet() -> Program:
    Unet = _load("denoising_diffusion_pytorch").Unet

    return Unet(dim=16, dim_mults=(1, 2), flash_attn=False).eval(), {
        "x": torch.randn(1, 3, 16, 16),
        "time": torch.tensor([3]),
    }


def _sampling(scheduler: str) -> Callable[[], Program]:
    """Five steps of sampling by a scheduler of diffusers, which makes its steps in every call."""

    def make() -> Program:
        steps = getattr(_load("diffusers"), scheduler)(num_train_timesteps=100)
        network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.SiLU(), nn.Conv2d(8, 3, 3, padding=1)).eval()

        def sample(x: Any) -> Any:
            steps.set_timesteps(5)
            x = x * steps.init_noise_sigma
            for t in steps.timesteps:
                x = steps.step(network(steps.scale_model_input(x, t)), t, x).prev_sample
            return x

        return sample, {"x": torch.randn(1, 3, 16, 16)}

    return make


_SCHEDULERS = (
    *(
        "DDPM",
        "DDIM",
        "PNDM",
        "LMSDiscrete",
        "EulerDiscrete",
        "EulerAncestralDiscrete",
        "HeunDiscrete",
        "KDPM2Discrete",
    ),
    *("DPMSolverMultistep", "UniPCMultistep", "DEISMultistep", "SASolver", "LCM", "TCD"),
)


# ---- reinforcement learning


def _policy(module: str, name: str) -> Any:
    gymnasium = _load("gymnasium")
    np = _load("numpy")
    space = gymnasium.spaces.Box(-1, 1, (6,), np.float32)
    return getattr(_load(module), name)(space, gymnasium.spaces.Discrete(3), lambda _: 1e-3).eval()


def stable_baselines3_policy() -> Program:
    policy = _policy("stable_baselines3.common.policies", "ActorCriticPolicy")
    return lambda x: policy.evaluate_actions(x, torch.zeros(4, dtype=torch.int64)), {"x": torch.randn(4, 6)}


def stable_baselines3_q_network() -> Program:
    return _policy("stable_baselines3.dqn.policies", "DQNPolicy").q_net, {"obs": torch.randn(4, 6)}


PROGRAMS: dict[str, Callable[[], Program]] = {
    function.__name__: function
    for function in (
        einops_patches,
        einx_products,
        rotary_embedding_torch_queries,
        local_attention_layer,
        linformer_model,
        performer_attention,
        perceiver_model,
        reformer_model,
        product_key_memory_layer,
        x_transformers_decoder,
        x_transformers_encoder,
        torchsde_euler,
        normflows_real_nvp,
        gpytorch_kernel,
        gpytorch_likelihood,
        torch_geometric_gin,
        torch_geometric_pooling,
        e3nn_tensor_product,
        e3nn_gate,
        kornia_warp,
        segmentation_models_unet,
        pytorch_msssim_ssim,
        torchmetrics_accuracy,
        torchmetrics_correlation,
        vector_quantize_layer,
        vector_quantize_fsq,
        diffusers_unet,
        diffusers_autoencoder,
        diffusers_transformer,
        diffusers_ddim_step,
        denoising_diffusion_unet,
        stable_baselines3_policy,
        stable_baselines3_q_network,
    )
} | {
    "vit_pytorch_vit": _vit("vit_pytorch", "ViT"),
    "vit_pytorch_simple_vit": _vit("vit_pytorch", "SimpleViT"),
    "vit_pytorch_cait": _vit("vit_pytorch.cait", "CaiT", cls_depth=1),
    "vit_pytorch_deepvit": _vit("vit_pytorch.deepvit", "DeepViT"),
    "torchdiffeq_rk4": _odeint("rk4"),
    "torchdiffeq_dopri5": _odeint("dopri5"),
    "torch_geometric_gcn": _convolution("GCNConv", 8, 16),
    "torch_geometric_gat": _convolution("GATConv", 8, 4, heads=2),
    "torch_geometric_sage": _convolution("SAGEConv", 8, 16),
    "torch_geometric_transformer": _convolution("TransformerConv", 8, 4, heads=2),
    "kornia_gaussian_blur": _kornia("filters.gaussian_blur2d", (5, 5), (1.5, 1.5)),
    "kornia_sobel": _kornia("filters.sobel"),
    "kornia_canny": _kornia("filters.canny"),
    "kornia_hsv": _kornia("color.rgb_to_hsv"),
    "kornia_lab": _kornia("color.rgb_to_lab"),
    "kornia_equalize": _kornia("enhance.equalize"),
    "kornia_rotate": _kornia("geometry.rotate", torch.tensor([10.0, 20.0])),
    **{f"diffusers_sampling_{name}": _sampling(f"{name}Scheduler") for name in _SCHEDULERS},
}
"""Programs by name; each name begins with that of its library."""
