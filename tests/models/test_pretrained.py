"""Published networks with random weights, and the preprocessing that their publishers state."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from beliefmatch.adaptation.heads import find_head
from beliefmatch.data.config import DataConfig
from beliefmatch.experiments.build import settings_for, trained_network
from beliefmatch.models import ExpectedInput, preprocessing_of, pretrained_model
from beliefmatch.models.pretrained import with_expected_input
from outside_packages import imported

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of external packages are not ours

RANDOM = {"pretrained": False}
VIT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}


def logits(network, images):
    with torch.no_grad():
        output = network(images)
    return getattr(output, "logits", output)


def check_file_of_weights(name, tmp_path, images, **options):
    """With the weights of one network another, built by name, has the same logits."""
    torch.manual_seed(1)
    saved = pretrained_model(name, options={**RANDOM, **options})
    named = {f"module.{key}": value for key, value in saved.state_dict().items()}
    torch.save({"state_dict": named}, tmp_path / "w.pth")
    torch.manual_seed(2)
    other = pretrained_model(name, options=options, weights=tmp_path / "w.pth")
    assert not other.training
    assert torch.equal(logits(other, images), logits(saved, images))
    return other


@pytest.mark.parametrize(
    "name", ["resnet18", "mobilenetv3_small_050", "vit_tiny_patch16_224", "convnext_atto"]
)
def test_timm(name):
    timm = imported("timm")
    found = trained_network(f"timm:{name}", options=RANDOM)
    assert found.network.num_classes == 1000
    theirs = timm.data.resolve_model_data_config(found.network)
    ours = found.expected
    assert (ours.mean, ours.std, ours.size) == (theirs["mean"], theirs["std"], theirs["input_size"][1])
    assert ours.margin == pytest.approx(1 / theirs["crop_pct"])
    assert ours.interpolation == theirs["interpolation"]


def test_timm_with_weights_of_a_file(tmp_path):
    imported("timm")
    images = torch.randn(2, 3, 64, 64)
    network = check_file_of_weights("timm:resnet18", tmp_path, images, num_classes=5)
    assert find_head(network, images).out_features == 5
    with pytest.raises(ValueError, match="`--model-option num_classes=5`"):
        pretrained_model("timm:resnet18", weights=tmp_path / "w.pth")


def test_torchvision_with_weights_of_a_file(tmp_path):
    imported("torchvision")
    images = torch.randn(2, 3, 64, 64)
    network = check_file_of_weights("torchvision:resnet18", tmp_path, images, num_classes=5)
    assert find_head(network, images).name == "fc"
    assert pretrained_model("torchvision:squeezenet1_1", options=RANDOM).num_classes == 1000
    with pytest.raises(ValueError, match="did you mean torchvision:resnet"):
        pretrained_model("torchvision:resnet19")
    with pytest.raises((TypeError, ValueError), match=r"^pretrained_model: torchvision:resnet18 failed"):
        pretrained_model("torchvision:resnet18", options={**RANDOM, "widht": 3})


def test_the_preprocessing_of_every_classifier_of_torchvision_is_known():
    models = imported("torchvision.models")
    names = models.list_models(module=models)
    assert len(names) > 50
    for name in names:
        transforms = models.get_model_weights(name).DEFAULT.transforms()
        found = ExpectedInput.from_torchvision(transforms)
        expected = transforms.mean, transforms.std, transforms.crop_size
        assert (list(found.mean), list(found.std), [found.size]) == expected
        assert round(found.size * found.margin) == max(transforms.resize_size[0], found.size)
    network = pretrained_model("torchvision:resnet18", options=RANDOM)
    assert preprocessing_of(network) == ExpectedInput.from_torchvision(
        models.ResNet18_Weights.DEFAULT.transforms()
    )


@pytest.fixture
def hugging_face(tmp_path):
    """A directory as `save_pretrained` leaves it."""
    transformers = imported("transformers")
    torch.manual_seed(0)
    config = transformers.ViTConfig(num_labels=11, image_size=32, patch_size=16, **VIT)
    model = transformers.ViTForImageClassification(config).eval()
    model.save_pretrained(tmp_path / "net")
    return tmp_path / "net", model


def test_a_directory_of_hugging_face(hugging_face, tmp_path):
    place, model = hugging_face
    images = torch.randn(2, 3, 32, 32)
    found = trained_network(f"hf:{place}")
    assert torch.equal(logits(found.network, images), logits(model, images))
    assert found.expected is None and not found.network.training
    check_file_of_weights(f"hf:{place}", tmp_path, images)
    other = pretrained_model(f"hf:{place}", options={"num_classes": 4})
    assert logits(other, images).shape == (2, 4)


SMALL = {"size": {"height": 32, "width": 32}}


@pytest.mark.parametrize(
    ("processor", "options"),
    [
        ("ViTImageProcessor", SMALL),
        ("ViTImageProcessor", {**SMALL, "do_normalize": False}),
        ("ViTImageProcessor", {**SMALL, "do_rescale": False, "image_mean": [120, 110, 100]}),
        ("EfficientNetImageProcessor", {**SMALL, "rescale_offset": True}),
        ("EfficientNetImageProcessor", {**SMALL, "include_top": False}),
        ("ConvNextImageProcessor", {"size": {"shortest_edge": 384}, "crop_pct": 0.9}),
    ],
)
def test_images_of_hugging_face_come_out_of_our_preprocessing_as_of_theirs(hugging_face, processor, options):
    transformers = imported("transformers")
    place, _ = hugging_face
    theirs = getattr(transformers, processor)(**options)
    theirs.save_pretrained(place)
    expected = preprocessing_of(pretrained_model(f"hf:{place}"))
    side = 384 if "ConvNext" in processor else 32
    assert (expected.size, expected.margin) == (side, 1.0)
    image = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    inputs = np.asarray(theirs(image, return_tensors="np")["pixel_values"][0])
    ours = (image / 255 - np.array(expected.mean)) / np.array(expected.std)
    np.testing.assert_allclose(ours.transpose(2, 0, 1), inputs, rtol=1e-4, atol=1e-4)
    direct = transformers.AutoModelForImageClassification.from_pretrained(place)
    assert preprocessing_of(direct) == expected


def test_no_pickles_and_no_code_of_hugging_face(hugging_face, tmp_path):
    place, model = hugging_face
    (place / "model.safetensors").unlink()
    torch.save(model.state_dict(), place / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"^pretrained_model: hf:.* failed \(OSError"):
        pretrained_model(f"hf:{place}")
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "own.py").write_text(
        f"open({f'{tmp_path}/ran'!r}, 'w')\nclass Config: pass\nclass Net: pass\n"
    )
    addresses = {"AutoConfig": "own.Config", "AutoModelForImageClassification": "own.Net"}
    (strange / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": addresses}))
    with pytest.raises(ValueError, match=r"^pretrained_model: hf:.* failed"):
        pretrained_model(f"hf:{strange}")
    assert not (tmp_path / "ran").exists()


IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HALF = (0.5, 0.5, 0.5)
CENTRE = {"size": {"shortest_edge": 256}, "do_center_crop": True}
TIMM = {"input_size": (3, 224, 224), "crop_pct": 0.875, "mean": IMAGENET[0], "std": IMAGENET[1]}


def test_timms_configuration():
    found = ExpectedInput.from_timm({**TIMM, "interpolation": "bicubic"})
    assert found == ExpectedInput(*IMAGENET, 224, pytest.approx(256 / 224), "bicubic")
    assert ExpectedInput.from_timm({**TIMM, "crop_pct": 1.0}).margin == 1
    assert ExpectedInput.from_timm({**TIMM, "crop_mode": "squash"}).margin == 1
    assert ExpectedInput.from_timm({**TIMM, "input_size": (3, 224, 192)}).size is None
    assert ExpectedInput.from_timm({"mean": HALF, "std": HALF}) == ExpectedInput(HALF, HALF, None, None)


@pytest.mark.parametrize(
    ("facts", "size", "margin"),
    [
        ({"size": {"height": 224, "width": 224}}, 224, 1.0),
        ({"size": 224}, 224, 1.0),
        ({"size": [224, 224]}, 224, 1.0),
        ({**CENTRE, "crop_size": 224}, 224, 256 / 224),
        ({**CENTRE, "crop_size": {"height": 224, "width": 224}}, 224, 256 / 224),
        ({"size": {"shortest_edge": 224}, "crop_pct": 0.875}, 224, 256 / 224),
        ({"size": {"shortest_edge": 384}, "crop_pct": 0.875}, 384, 1.0),
        ({"size": {"height": 224, "width": 200}}, None, 1.0),
        ({"size": 224, "do_resize": False}, None, None),
        ({"size": {"longest_edge": 3}}, None, None),
        ({}, None, None),
    ],
)
def test_sizes_of_hugging_face(facts, size, margin):
    found = ExpectedInput.from_hugging_face({"image_mean": HALF, "image_std": HALF, **facts})
    assert found.size == size
    assert found.margin == (None if margin is None else pytest.approx(margin))


@pytest.mark.parametrize(
    "facts",
    [
        {"image_mean": IMAGENET[0], "image_std": IMAGENET[1]},
        {"image_mean": [0.5], "image_std": [0.25]},
        {"image_mean": 0.5, "image_std": 0.25},
        {"do_normalize": False},
        {"image_mean": HALF, "image_std": HALF, "do_rescale": False},
        {"image_mean": HALF, "image_std": HALF, "rescale_factor": 1 / 127.5},
        {"image_mean": HALF, "image_std": HALF, "rescale_factor": 1 / 127.5, "rescale_offset": True},
    ],
)
def test_scaling_of_hugging_face_does_to_bytes_what_its_processors_do(facts):
    pixels = np.arange(0, 256, 5.0)
    theirs = pixels * (facts.get("rescale_factor", 1 / 255) if facts.get("do_rescale", True) else 1)
    theirs = theirs - 1 if facts.get("rescale_offset") else theirs
    found = ExpectedInput.from_hugging_face(facts)
    assert len(found.mean) == len(found.std) == (1 if facts.get("image_mean") == [0.5] else 3)
    if facts.get("do_normalize", True):
        theirs = (theirs - np.ravel(facts["image_mean"])[0]) / np.ravel(facts["image_std"])[0]
    np.testing.assert_allclose((pixels / 255 - found.mean[0]) / found.std[0], theirs, rtol=1e-9, atol=1e-9)


def test_the_preprocessing_is_what_was_set_or_what_the_network_carries():
    network = nn.Linear(2, 2)
    assert preprocessing_of(network) is None
    network.pretrained_cfg = TIMM
    assert preprocessing_of(network).size == 224
    expected = ExpectedInput(HALF, HALF, 32, 1.0)
    assert preprocessing_of(with_expected_input(network, expected)) is expected
    assert list(network.state_dict()) == ["weight", "bias"]
    declaring = nn.Linear(2, 2)
    declaring.pretrained_cfg = TIMM
    declaring.data_config = {"mean": HALF, "std": HALF, "size": 96}
    assert preprocessing_of(declaring) == ExpectedInput(HALF, HALF, 96, None)
    declaring.preprocessing = nn.Identity()  # a layer of the network
    assert preprocessing_of(declaring).size == 96
    del declaring.preprocessing
    declaring.preprocessing = expected
    assert preprocessing_of(declaring) is expected
    other = nn.Linear(2, 2)
    other.name_or_path = "nobody/nothing-of-this-name"
    assert preprocessing_of(other) is None
    assert torch.equal(with_expected_input(other, None).weight, other.weight)


def test_data_settings_default_to_what_the_network_expects():
    expected = ExpectedInput(HALF, HALF, 224, 1.2)
    assert settings_for(DataConfig(), None) == DataConfig()
    found = settings_for(DataConfig(name="cifar10", limit=7), expected)
    assert found == DataConfig(name="cifar10", limit=7, mean=HALF, std=HALF, size=224, margin=1.2)
    own = DataConfig(mean=(0.1,), std=(0.2,), size=96, margin=1.0)
    assert settings_for(own, expected) == own
    assert settings_for(DataConfig(size=96), expected).margin == 1.2
    nothing = settings_for(DataConfig(), ExpectedInput(None, None, None, 1.2))
    assert nothing == DataConfig()
