"""Heads of the networks that people have: timm's, torchvision's and Hugging Face's, with random weights."""

import pytest
import torch
from torch import nn

from beliefmatch.adaptation.batchnorm import batchnorm_layers
from beliefmatch.adaptation.heads import Backbone, call_model, find_head, head_weights, logits_of
from beliefmatch.adaptation.surgery import add_belief, with_head
from beliefmatch.models import PooledEncoder
from outside_packages import imported

# warnings of other packages are theirs
pytestmark = pytest.mark.filterwarnings("ignore")
CLASSES = 7


def called(model, batch):
    with torch.no_grad():
        return logits_of(call_model(model.eval(), batch))


def check_head_and_copy(model, batch, name):
    """Found; the features make the logits; another head of other width on them makes those of the copy."""
    model.train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    head = find_head(model, batch)
    assert head.name == name
    features = Backbone(model, head)(batch)
    assert model.training
    weight, bias = head_weights(model, head)
    torch.testing.assert_close(features @ weight.T + bias, called(model, batch), rtol=1e-4, atol=1e-5)

    weight = torch.randn(CLASSES, head.in_features) / head.in_features**0.5
    better = add_belief(with_head(model, head, weight, None))
    assert list(better.state_dict()) == list(before)
    assert isinstance(better, type(model))
    belief = better.belief(batch)
    torch.testing.assert_close(belief.log_alpha, features @ weight.T, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(called(better, batch), features @ weight.T, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    return head, better


TIMM = {
    "resnet18": ("fc", 64),
    "vit_tiny_patch16_224": ("head", 224),
    "convnext_atto": ("head.fc", 64),
    "efficientnet_lite0": ("classifier", 64),
    "efficientnet_b0": ("classifier", 64),
    "mobilenetv3_small_050": ("classifier", 64),
    "densenet121": ("classifier", 64),
    "regnetx_002": ("head.fc", 64),
    "swin_tiny_patch4_window7_224": ("head.fc", 224),
    "mixer_s32_224": ("head", 224),
    "resnetv2_50x1_bit": ("head.fc", 64),
    "inception_v4": ("last_linear", 96),
    "xcit_nano_12_p16_224": ("head", 64),
    "cspresnet50": ("head.fc", 64),
    "dpn48b": ("classifier", 64),
    "nfnet_l0": ("head.fc", 64),
    "tresnet_m": ("head.fc", 64),
}


@pytest.mark.parametrize("name", TIMM)
def test_timm(name):
    timm = imported("timm")
    layer, size = TIMM[name]
    model = timm.create_model(name, pretrained=False, num_classes=11)
    _, better = check_head_and_copy(model, torch.randn(3, 3, size, size), layer)
    assert better.num_classes == CLASSES
    assert model.num_classes == 11


def test_a_convolution_for_a_head_stays_one():
    timm = imported("timm")
    model = timm.create_model("resnetv2_50x1_bit", pretrained=False, num_classes=11)
    head = find_head(model, torch.randn(2, 3, 64, 64))
    assert (head.kind, head.pooling, head.in_features) == ("conv1x1", "none", 2048)
    better = with_head(model, head, torch.zeros(CLASSES, 2048), torch.arange(7.0))
    assert better.head.fc.weight.shape == (CLASSES, 2048, 1, 1)


@pytest.mark.parametrize("name", ["deit_tiny_distilled_patch16_224", "levit_128s"])
def test_the_mean_of_two_heads_is_refused(name):
    timm = imported("timm")
    model = timm.create_model(name, pretrained=False, num_classes=11)
    with pytest.raises(ValueError, match=r"mean of `head\S* .* and `head_dist\S*"):
        find_head(model, torch.randn(3, 3, 224, 224))


TORCHVISION = {
    "resnet18": ("fc", 64),
    "mobilenet_v2": ("classifier.1", 64),
    "mobilenet_v3_small": ("classifier.3", 64),
    "shufflenet_v2_x0_5": ("fc", 64),
    "alexnet": ("classifier.6", 64),
    "densenet121": ("classifier", 64),
    "googlenet": ("fc", 64),
    "inception_v3": ("fc", 80),
    "convnext_tiny": ("classifier.2", 64),
    "swin_t": ("head", 64),
    "vit_b_32": ("heads.head", 224),
    "regnet_y_400mf": ("fc", 64),
}


@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvision(name):
    models = imported("torchvision").models
    layer, size = TORCHVISION[name]
    options = {"init_weights": False} if name in {"googlenet", "inception_v3"} else {}
    model = models.get_model(name, weights=None, num_classes=11, **options)
    _, better = check_head_and_copy(model, torch.randn(3, 3, size, size), layer)
    linear = better.get_submodule(layer)
    assert (type(linear), linear.out_features) == (nn.Linear, CLASSES)


def test_auxiliary_heads_of_training_are_no_obstacle_and_no_layers_to_train():
    models = imported("torchvision").models
    model = models.inception_v3(weights=None, num_classes=11, init_weights=False, aux_logits=True)
    names = batchnorm_layers(model, torch.randn(2, 3, 80, 80))
    assert names
    assert not any(name.startswith("AuxLogits") for name in names)
    assert any(name.startswith("AuxLogits") for name in batchnorm_layers(model))


def test_the_rectifier_behind_squeezenets_convolution_is_refused():
    models = imported("torchvision").models
    model = models.squeezenet1_1(weights=None, num_classes=11)
    with pytest.raises(ValueError, match=r"relu .*`classifier.1`"):
        find_head(model, torch.randn(3, 3, 64, 64))


SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
TEXT = {**SMALL, "vocab_size": 20}
BART = {"layers": 1, "attention_heads": 2, "ffn_dim": 24}
PIXELS = {"pixel_values": torch.randn(3, 3, 32, 32)}
IDS = torch.tensor([[5, 7, 2, 1], [3, 2, 1, 1], [6, 8, 9, 2]])  # 2 ends a sentence, 1 is padding
WORDS = {"input_ids": IDS, "attention_mask": (IDS != 1).long()}
HUGGING_FACE = {
    "ViTForImageClassification": ("classifier", {**SMALL, "image_size": 32, "patch_size": 16}),
    "ResNetForImageClassification": (
        "classifier.1",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
    ),
    "ConvNextForImageClassification": (
        "classifier",
        {"hidden_sizes": [8, 8, 8, 16], "depths": [1, 1, 1, 1], "num_stages": 4},
    ),
    "BertForSequenceClassification": ("classifier", TEXT),
    "RobertaForSequenceClassification": ("classifier.out_proj", TEXT),
    "ElectraForSequenceClassification": ("classifier.out_proj", TEXT),
    "DistilBertForSequenceClassification": (
        "classifier",
        {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 24, "vocab_size": 20},
    ),
    "BartForSequenceClassification": (
        "classification_head.out_proj",
        {"d_model": 16, "vocab_size": 20, "eos_token_id": 2}
        | {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in BART.items()},
    ),
    "LlamaForSequenceClassification": ("score", {**TEXT, "pad_token_id": 1}),
    "GPT2ForSequenceClassification": (
        "score",
        {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 20, "pad_token_id": 1},
    ),
}


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_hugging_face(name, tmp_path):
    kind = getattr(imported("transformers"), name)
    layer, options = HUGGING_FACE[name]
    batch = PIXELS if "Image" in name else WORDS
    model = kind(kind.config_class(num_labels=11, **options))
    head, better = check_head_and_copy(model, batch, layer)
    assert head.pooling == ("network" if layer == "score" else "none")
    assert (better.config.num_labels, model.config.num_labels) == (CLASSES, 11)
    assert len(better.config.id2label) == CLASSES
    better.save_pretrained(tmp_path)
    torch.testing.assert_close(called(kind.from_pretrained(tmp_path), batch), called(better, batch))


@pytest.mark.parametrize("name", ["BertModel", "RobertaModel", "ElectraModel"])
def test_hugging_face_encoders(name):
    transformers = imported("transformers")
    kind = getattr(transformers, name)
    model = PooledEncoder(kind(kind.config_class(**TEXT)), normalize=True)
    batch = transformers.BatchEncoding(WORDS)
    head = find_head(model, batch)
    features = Backbone(model, head)(batch)
    torch.testing.assert_close(features.norm(dim=1), torch.ones(3))
    alone = {key: value[1:2, :2] for key, value in WORDS.items()}  # without its padding
    torch.testing.assert_close(Backbone(model, head)(alone)[0], features[1])
    weight = torch.randn(CLASSES, 16)
    better = with_head(model, head, weight, None)
    torch.testing.assert_close(called(better, batch), features @ weight.T)


def test_a_network_without_classifier_says_what_it_returned():
    transformers = imported("transformers")
    config = transformers.ViTConfig(**SMALL, image_size=32, patch_size=16)
    with pytest.raises(TypeError, match=r"BaseModelOutputWithPooling.*PooledEncoder"):
        find_head(transformers.ViTModel(config), PIXELS)
