-- Renew a worker's leases of one run, tell it which it lost, and free those that nobody renewed.
-- KEYS lease owner done beat state lapses open; ARGV lease_ms limit ttl_s [batch bit token]…
-- Returns {lost batches, freed batches, run status, 1 if the run is over: nothing of it is leased, open, or yet to come}.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local lease_ms = tonumber(ARGV[1])
local lost = {}
for i = 4, #ARGV, 3 do
  local owner = redis.call('HGET', KEYS[2], ARGV[i])
  if owner == ARGV[i + 2] then
    redis.call('ZADD', KEYS[1], now + lease_ms, ARGV[i])
  elseif not owner and redis.call('GETBIT', KEYS[3], ARGV[i + 1]) == 0 then
    -- freed, but nobody else has begun it (a pause, or a Redis that lost its memory): keep it
    redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 2])
    redis.call('ZADD', KEYS[1], now + lease_ms, ARGV[i])
  else
    lost[#lost + 1] = ARGV[i]
  end
end
local last = tonumber(redis.call('HGET', KEYS[4], 'last') or '0')
redis.call('HSET', KEYS[4], 'last', now)
redis.call('EXPIRE', KEYS[4], ARGV[3])
if last > 0 and now - last > lease_ms / 2 then  -- nobody beat for a while, so Redis was away: let owners renew first
  redis.call('HSET', KEYS[4], 'grace', now + lease_ms)
end
local freed = {}
if now >= tonumber(redis.call('HGET', KEYS[4], 'grace') or '0') then
  for _, batch in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, tonumber(ARGV[2]))) do
    redis.call('ZREM', KEYS[1], batch)
    redis.call('HDEL', KEYS[2], batch)
    redis.call('HINCRBY', KEYS[6], batch, 1)
    freed[#freed + 1] = batch
  end
end
local status = redis.call('HGET', KEYS[5], 'status') or ''
local held = redis.call('ZCARD', KEYS[1]) + redis.call('SCARD', KEYS[7])
local over = status == 'complete' or (status == 'cancelled' and held == 0)
return {lost, freed, status, over and 1 or 0}
