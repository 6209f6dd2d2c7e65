-- A run that is over leaves the list of those under way, unless it was taken up again since.
-- KEYS runs state; ARGV run
local status = redis.call('HGET', KEYS[2], 'status')
if status == false or status == 'complete' or status == 'cancelled' then return redis.call('ZREM', KEYS[1], ARGV[1]) end
return 0
