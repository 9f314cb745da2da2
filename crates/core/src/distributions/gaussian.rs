//! The normal distribution and the lognormal.

use super::distribution::display_as;
use super::error::{finite, positive};
use super::{Distribution, DistributionError};

/// Mean and standard deviation. It can be negative: users of times set negative values to 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Normal {
    mean: f64,
    deviation: f64,
}

display_as!(Normal, "normal:mean={},deviation={}", mean, deviation);

impl Normal {
    /// The distribution with this mean and standard deviation.
    ///
    /// # Errors
    /// When `mean` is not finite or `deviation` not finite and above 0.
    pub fn new(mean: f64, deviation: f64) -> Result<Self, DistributionError> {
        Ok(Self {
            mean: finite("normal", "mean", mean)?,
            deviation: positive("normal", "deviation", deviation)?,
        })
    }

    /// Expected value of max(0, X): mean Phi(mean / deviation) + deviation phi(mean / deviation).
    pub(super) fn mean_cut_at_0(&self) -> f64 {
        let standard = self.mean / self.deviation;
        let density = libm::exp(-standard * standard / 2.0) / std::f64::consts::TAU.sqrt();
        self.mean * standard_cdf(standard) + self.deviation * density
    }
}

impl Distribution for Normal {
    fn mean(&self) -> f64 {
        self.mean
    }

    fn variance(&self) -> f64 {
        self.deviation * self.deviation
    }

    fn cdf(&self, x: f64) -> f64 {
        standard_cdf((x - self.mean) / self.deviation)
    }

    fn quantile(&self, probability: f64) -> f64 {
        self.mean + self.deviation * standard_quantile(probability)
    }
}

/// Distribution function of the normal distribution with mean 0 and deviation 1.
pub(super) fn standard_cdf(x: f64) -> f64 {
    libm::erfc(-x / std::f64::consts::SQRT_2) / 2.0
}

/// Its quantile: Wichura's algorithm AS 241 (PPND16), relative accuracy about 1e-16.
pub(super) fn standard_quantile(probability: f64) -> f64 {
    if probability <= 0.0 {
        return f64::NEG_INFINITY;
    }
    if probability >= 1.0 {
        return f64::INFINITY;
    }
    let centred = probability - 0.5;
    if centred.abs() <= 0.425 {
        let r = 0.180_625 - centred * centred;
        return centred * ratio(r, &CENTRE);
    }
    let tail = if centred < 0.0 {
        probability
    } else {
        1.0 - probability
    };
    let r = (-libm::log(tail)).sqrt();
    let distance = if r <= 5.0 {
        ratio(r - 1.6, &TAIL)
    } else {
        ratio(r - 5.0, &FAR_TAIL)
    };
    distance.copysign(centred)
}

/// Ratio of two polynomials of degree 7, highest coefficient last.
fn ratio(x: f64, [numerator, denominator]: &[[f64; 8]; 2]) -> f64 {
    let polynomial = |coefficients: &[f64; 8]| {
        coefficients
            .iter()
            .rev()
            .fold(0.0, |sum, coefficient| sum * x + coefficient)
    };
    polynomial(numerator) / polynomial(denominator)
}

#[allow(clippy::excessive_precision)] // As published.
const CENTRE: [[f64; 8]; 2] = [
    [
        3.387_132_872_796_366_608_0,
        1.331_416_678_917_843_774_5e2,
        1.971_590_950_306_551_442_7e3,
        1.373_169_376_550_946_112_5e4,
        4.592_195_393_154_987_145_7e4,
        6.726_577_092_700_870_085_3e4,
        3.343_057_558_358_812_810_5e4,
        2.509_080_928_730_122_672_7e3,
    ],
    [
        1.0,
        4.231_333_070_160_091_125_2e1,
        6.871_870_074_920_579_083_0e2,
        5.394_196_021_424_751_107_7e3,
        2.121_379_430_158_659_586_7e4,
        3.930_789_580_009_271_061_0e4,
        2.872_908_573_572_194_267_4e4,
        5.226_495_278_852_854_561_0e3,
    ],
];

#[allow(clippy::excessive_precision)] // As published.
const TAIL: [[f64; 8]; 2] = [
    [
        1.423_437_110_749_683_577_34,
        4.630_337_846_156_545_295_90,
        5.769_497_221_460_691_405_50,
        3.647_848_324_763_204_605_04,
        1.270_458_252_452_368_382_58,
        2.417_807_251_774_506_117_70e-1,
        2.272_384_498_926_918_458_33e-2,
        7.745_450_142_783_414_076_40e-4,
    ],
    [
        1.0,
        2.053_191_626_637_758_821_87,
        1.676_384_830_183_803_849_40,
        6.897_673_349_851_000_045_50e-1,
        1.481_039_764_274_800_745_90e-1,
        1.519_866_656_361_645_719_66e-2,
        5.475_938_084_995_344_946_00e-4,
        1.050_750_071_644_416_843_24e-9,
    ],
];

#[allow(clippy::excessive_precision)] // As published.
const FAR_TAIL: [[f64; 8]; 2] = [
    [
        6.657_904_643_501_103_777_20,
        5.463_784_911_164_114_369_90,
        1.784_826_539_917_291_335_80,
        2.965_605_718_285_048_912_30e-1,
        2.653_218_952_657_612_309_30e-2,
        1.242_660_947_388_078_438_60e-3,
        2.711_555_568_743_487_578_15e-5,
        2.010_334_399_292_288_132_65e-7,
    ],
    [
        1.0,
        5.998_322_065_558_879_376_90e-1,
        1.369_298_809_227_358_053_10e-1,
        1.487_536_129_085_061_485_25e-2,
        7.868_691_311_456_132_591_00e-4,
        1.846_318_317_510_054_681_80e-5,
        1.421_511_758_316_445_888_70e-7,
        2.044_263_103_389_939_785_64e-15,
    ],
];

/// exp of a normal number with mean `mu` and standard deviation `sigma`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lognormal {
    mu: f64,
    sigma: f64,
}

display_as!(Lognormal, "lognormal:mu={},sigma={}", mu, sigma);

impl Lognormal {
    /// The distribution whose logarithm has this mean and standard deviation.
    ///
    /// # Errors
    /// When `mu` is not finite or `sigma` not finite and above 0.
    pub fn new(mu: f64, sigma: f64) -> Result<Self, DistributionError> {
        Ok(Self {
            mu: finite("lognormal", "mu", mu)?,
            sigma: positive("lognormal", "sigma", sigma)?,
        })
    }

    /// The distribution that itself has this mean and standard deviation.
    ///
    /// # Errors
    /// When one of them is not finite and above 0.
    pub fn with_moments(mean: f64, deviation: f64) -> Result<Self, DistributionError> {
        positive("lognormal", "mean", mean)?;
        positive("lognormal", "deviation", deviation)?;
        let variation = deviation / mean;
        let variance = libm::log1p(variation * variation);
        Self::new(libm::log(mean) - variance / 2.0, variance.sqrt())
    }
}

impl Distribution for Lognormal {
    fn mean(&self) -> f64 {
        libm::exp(self.mu + self.sigma * self.sigma / 2.0)
    }

    fn variance(&self) -> f64 {
        let mean = self.mean();
        mean * mean * libm::expm1(self.sigma * self.sigma)
    }

    fn cdf(&self, x: f64) -> f64 {
        if x <= 0.0 {
            return 0.0;
        }
        standard_cdf((libm::log(x) - self.mu) / self.sigma)
    }

    fn quantile(&self, probability: f64) -> f64 {
        libm::exp(self.mu + self.sigma * standard_quantile(probability))
    }
}
