//! Dividing a number of cells by shares.

/// Whole cells for shares, `cells` in all: every share gets its whole part, and the cells that are
/// left go to the largest remainders (Hamilton's method; ties to the first). No other division into whole
/// cells has a smaller greatest error. The printed f = rho * p (4.10) says nothing of rounding: cut
/// off, up to one cell of each entry is lost.
///
/// `weights` need not add up to anything; when their sum is 0, no share gets a cell.
pub(super) fn divide(cells: u32, weights: &[f64]) -> Vec<u32> {
    let sum: f64 = weights.iter().sum();
    if sum <= 0.0 {
        return vec![0; weights.len()];
    }
    let exact: Vec<f64> = weights
        .iter()
        .map(|weight| weight / sum * f64::from(cells))
        .collect();
    // Rounding of the sum must not give more cells than there are.
    let mut left = cells;
    let mut divided: Vec<u32> = exact
        .iter()
        .map(|share| {
            let whole = (share.floor() as u32).min(left);
            left -= whole;
            whole
        })
        .collect();
    let mut order: Vec<usize> = (0..weights.len()).filter(|&i| weights[i] > 0.0).collect();
    order.sort_by(|&a, &b| {
        let remainder = |index: usize| exact[index] - f64::from(divided[index]);
        remainder(b).total_cmp(&remainder(a)).then(a.cmp(&b))
    });
    for index in order.into_iter().cycle().take(left as usize) {
        divided[index] += 1;
    }
    divided
}
